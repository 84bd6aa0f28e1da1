//! A step that is known by its shapes alone.

use rekindle::record;
use rekindle_plan::{Bytes, PlanRequest, Schedule};

use crate::{
    Estimated,
    session::{MeasuredStep, Planned, RunError},
};

/// What is to be estimated beside the plain run.
pub enum Wanted {
    /// Nothing.
    Plain,
    /// What a planner finds.
    Plan(PlanRequest),
    /// A plan that was made before, by the planner of this name.
    Made(Schedule, String),
}

impl Wanted {
    /// The budget that was asked for.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            _ => None,
        }
    }
}

/// A step by its shapes.
pub struct Known<'a> {
    /// What is estimated.
    pub estimated: Estimated<'a>,
    /// The estimate.
    pub estimate: record::Estimate,
    /// The same, to be planned.
    pub step: MeasuredStep,
    /// The sum of gradients that stays while a batch is run in parts.
    pub summed_bytes: Bytes,
}

impl<'a> Known<'a> {
    /// Records the step by its shapes; nothing runs.
    ///
    /// # Errors
    ///
    /// As [`Estimated::estimate`].
    pub fn new(estimated: Estimated<'a>) -> Result<Self, RunError> {
        let estimate = estimated.estimate()?;
        Ok(Self {
            step: estimated.step_of(&estimate)?,
            summed_bytes: estimated.settings.accumulated_bytes(estimate.trainable),
            estimate,
            estimated,
        })
    }

    /// What is wanted, or why it cannot be had.
    #[must_use]
    pub fn find(&self, wanted: &Wanted) -> Option<Result<Planned, RunError>> {
        match wanted {
            Wanted::Plain => None,
            Wanted::Plan(request) => Some(self.step.plan(request)),
            Wanted::Made(schedule, planner) => {
                Some(self.step.plan_schedule(schedule.clone(), planner.clone()))
            }
        }
    }
}
