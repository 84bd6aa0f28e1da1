//! Why there is no plan.

use crate::bytes::Bytes;
use crate::chain::ChainError;
use crate::plan::PlannerKind;
use crate::schedule::ScheduleError;
use crate::simulator::Violation;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No schedule of the planner fits the budget.
    #[error("no {planner} plan fits {} bytes ({budget}): the smallest budget that works is {} bytes ({smallest})", budget.0, smallest.0)]
    Infeasible {
        /// The planner that was asked.
        planner: PlannerKind,
        /// The budget, everything counted.
        budget: Bytes,
        /// The smallest budget that this planner can meet, exactly.
        smallest: Bytes,
        /// The smallest budget that any planner here can meet, exactly.
        smallest_of_all: Bytes,
    },
    /// The chain holds a wrong value.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A chain has at least one stage.
    #[error("a chain without stages has no plan")]
    NoStages,
    /// There are at least one and at most as many segments as stages.
    #[error(
        "{segments} segments for {stages} stages: the number of segments is from 1 to the number of stages"
    )]
    Segments {
        /// The number of segments that was asked for.
        segments: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A number of segments was given to a planner that has no use for it.
    #[error("the {planner} planner takes no number of segments: only uniform and segments do")]
    SegmentsUnused {
        /// The planner.
        planner: PlannerKind,
    },
    /// There are at least one and at most as many snapshots as stages.
    #[error(
        "{snapshots} snapshots for {stages} stages: the number of snapshots is from 1 to the number of stages"
    )]
    Snapshots {
        /// The number of snapshots that was asked for, the chain's input among them.
        snapshots: usize,
        /// The number of stages.
        stages: usize,
    },
    /// The table needs at least one slot, and more than a million only cost memory.
    #[error("{slots} slots: the number of slots is from 1 to 1000000")]
    SlotCount {
        /// The number that was asked for.
        slots: usize,
    },
    /// The cuts between segments rise and lie inside the chain.
    #[error(
        "segments cannot start at {starts:?} in a chain of {stages} stages: the starts rise from 1"
    )]
    Cuts {
        /// The first stages of the second and later segments.
        starts: Vec<usize>,
        /// The number of stages.
        stages: usize,
    },
    /// A planner made a schedule that breaks a rule: a bug in this crate.
    #[error("the planner's own schedule breaks a rule, please report this: {0}")]
    Schedule(#[from] ScheduleError),
    /// A planner made a schedule that its chain cannot run: a bug in this crate.
    #[error("the planner's own schedule does not fit its chain, please report this: {0}")]
    Violation(#[from] Violation),
}
