//! The error when no plan can be made.

use crate::bytes::Bytes;
use crate::chain::ChainError;
use crate::request::Planner;

/// The error when no plan can be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No plan fits the budget. Planners say so with their plan of the smallest peak
    /// ([`GraphPlanError::Infeasible`](crate::GraphPlanError)); callers that hold more than the plan's bytes, with its sum.
    #[error(
        "{} {budget} ({} bytes): the smallest workable budget is {smallest} ({} bytes){}",
        no_fit(*planner), budget.0, smallest.0, held_at(floor.as_deref())
    )]
    Infeasible {
        /// The requested planner.
        planner: Planner,
        /// The budget, everything counted.
        budget: Bytes,
        /// The smallest budget that this planner can meet.
        smallest: Bytes,
        /// The smallest budget that any planner can meet.
        smallest_of_all: Bytes,
        /// Where this planner's smallest plan has its peak, if that is known.
        floor: Option<String>,
    },
    /// The chain contains an invalid value.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// No such planner, or one that does not take the chain or the number of segments.
    #[error("{0}")]
    Request(String),
}

impl PlanError {
    /// The error of a number of segments that is not between 1 and the number of stages.
    #[must_use]
    pub fn segments(segments: usize, stages: usize) -> PlanError {
        let (of, into) = (several(stages, "stage"), several(segments, "segment"));
        let most = stages.max(1);
        PlanError::Request(format!("cannot cut {of} into {into}: use 1 to {most}"))
    }
}

/// The start of the error message, which names the plans that do not fit.
fn no_fit(planner: Planner) -> String {
    match planner {
        Planner::None => "the plain run does not fit".to_owned(),
        Planner::Auto => "no plan fits".to_owned(),
        _ => format!("no plan of `{planner}` fits"),
    }
}

/// The end of the error message, which says where the peak is.
#[doc(hidden)]
#[must_use]
pub fn held_at(floor: Option<&str>) -> String {
    floor.map_or_else(String::new, |floor| format!(". It is held {floor}"))
}

/// `1 stage`, `2 stages`.
fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
