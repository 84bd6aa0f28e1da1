//! Why there is no plan of a graph.

use super::program::ProgramError;
use super::request::GraphPlanner;
use super::validate::GraphError;
use crate::bytes::Bytes;
use crate::planner::PlanError;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphPlanError {
    /// No program that was found fits the budget.
    #[error(
        "no {planner} program fits {} bytes ({budget}): the smallest budget found to work is {} bytes ({smallest})",
        budget.0, smallest.0
    )]
    Infeasible {
        /// The planner that was asked.
        planner: GraphPlanner,
        /// The budget.
        budget: Bytes,
        /// The smallest peak that the planner found.
        smallest: Bytes,
    },
    /// A schedule was made for another number of stages.
    #[error("the schedule is for {of_schedule} stages, the recorded step has {of_graph}")]
    Stages {
        /// What it was made for.
        of_schedule: usize,
        /// What there is.
        of_graph: usize,
    },
    /// A program holds more on the host than it may.
    #[error("the plan holds {takes} in host memory, where it may hold {host}")]
    Host {
        /// What it holds.
        takes: Bytes,
        /// What it may.
        host: Bytes,
    },
    /// The graph breaks a rule.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The planners of chains refuse the request or the sizes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A program breaks a rule: a planner is wrong.
    #[error(transparent)]
    Program(#[from] ProgramError),
}
