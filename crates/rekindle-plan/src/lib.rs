//! Recompute schedules for chains of stages, a simulator that referees them, and planners that fit a memory budget.
