//! The planners: from a chain and a budget to a schedule.

mod none;
mod single_level;
mod uniform;

use crate::schedule::ScheduleError;

pub use none::none;
pub use single_level::single_level;
pub use uniform::uniform;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
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
}
