//! The error when no plan can be made.

use crate::bytes::Bytes;
use crate::chain::ChainError;
use crate::request::Planner;

/// The error when no plan can be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No schedule of the planner fits the budget.
    #[error(
        "{} {budget} ({} bytes): the smallest workable budget is {smallest} ({} bytes)",
        no_fit(*planner), budget.0, smallest.0
    )]
    Infeasible {
        /// The requested planner.
        planner: Planner,
        /// The budget, everything counted.
        budget: Bytes,
        /// The smallest budget that this planner can meet, exactly.
        smallest: Bytes,
        /// The smallest budget that any planner here can meet, exactly. For a chain of more than 2,000 stages: the
        /// smallest that the requested planner or a single-level cut can meet.
        smallest_of_all: Bytes,
    },
    /// The chain contains an invalid value.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A chain has at least one stage.
    #[error("a chain without stages has no plan")]
    NoStages,
    /// The number of segments must be between 1 and the number of stages.
    #[error(
        "cannot cut {} into {}: use 1 to {stages}",
        several(*stages, "stage"), several(*segments, "segment")
    )]
    Segments {
        /// The requested number of segments.
        segments: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A number of segments was given to a planner that does not use it.
    #[error("the {planner} planner takes no number of segments: leave one of them out")]
    SegmentsUnused {
        /// The planner.
        planner: Planner,
    },
    /// The starts of segments must be increasing and inside the chain.
    #[error(
        "segments cannot start at stages {starts:?} of {stages}: the starts must rise, from 1 to {stages} - 1"
    )]
    Cuts {
        /// The first stages of the second and later segments.
        starts: Vec<usize>,
        /// The number of stages.
        stages: usize,
    },
    /// The chain is too long for the planner, which would need too much time or memory.
    #[error(
        "the {planner} planner takes at most {most} stages here, and the chain has {stages}: merge neighbouring stages, or \
         give a number of segments"
    )]
    TooManyStages {
        /// The planner.
        planner: Planner,
        /// The number of stages.
        stages: usize,
        /// The maximum for this planner.
        most: usize,
    },
}

/// The start of the error message, which names the plans that do not fit.
fn no_fit(planner: Planner) -> String {
    match planner {
        Planner::None => "the plain run does not fit".to_owned(),
        Planner::Auto => "no plan fits".to_owned(),
        _ => format!("no plan of `{planner}` fits"),
    }
}

/// `1 stage`, `2 stages`.
fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
