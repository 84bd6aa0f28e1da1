//! Errors of planning a graph.

use super::plan::GraphPlan;
use super::validate::GraphError;
use crate::bytes::Bytes;
use crate::planner::PlanError;
use crate::request::Planner;

/// The error when no plan can be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphPlanError {
    /// No program was found that fits the budget.
    #[error(
        "no {planner} program fits {} bytes ({budget}): the smallest budget found to work is {} bytes ({})",
        budget.0, leanest.simulated.peak.0, leanest.simulated.peak
    )]
    Infeasible {
        /// The requested planner.
        planner: Planner,
        /// The budget.
        budget: Bytes,
        /// The plan with the smallest peak that the planner found.
        leanest: Box<GraphPlan>,
    },
    /// The graph or the program is invalid, or the program exceeds the limit on host bytes; a planner's own only by a bug.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The planners for chains reject the request or the sizes.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
