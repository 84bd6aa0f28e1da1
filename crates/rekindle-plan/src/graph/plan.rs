//! A plan for a graph, and the error when there is none.

use super::link::Link;
use super::{Found, Graph, GraphError, OperationId, Program, Simulated, TensorId};
use crate::bytes::Bytes;
use crate::chain::ChainError;
use crate::request::{Planner, Request};
use crate::schedule::{self, Action, StageId};

/// A program with its cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// The program.
    pub program: Program,
    /// Its cost.
    pub simulated: Simulated,
    /// The requested planner; for `auto`, the planner that was chosen.
    pub planner: Planner,
    /// The schedule over stages that the program was made from, if there is one.
    pub schedule: Option<Vec<Action>>,
    /// The offloaded tensors. The program belongs to the graph [with transfers](Graph::linked) of these.
    pub offloaded: Vec<TensorId>,
}

impl GraphPlan {
    /// First and last stage of each segment that is recomputed as a whole, if the program was made so.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        schedule::segments(self.schedule.as_ref()?)
    }

    /// The plan that runs these operations of the graph [with transfers](Graph::linked) of `offloaded`.
    ///
    /// # Errors
    /// The graph or the operations are invalid, or tensors are offloaded without a link.
    pub fn of_operations(
        graph: &Graph,
        link: Option<&Link>,
        operations: Vec<OperationId>,
        offloaded: Vec<TensorId>,
    ) -> Result<GraphPlan, PlanError> {
        graph.validate()?;
        let linked = graph.linked(&offloaded, link)?;
        let found = Found::of(&linked, &Program::settled(&linked, operations)?);
        if let Some(link) = link
            && found.simulated.host_peak > link.host_bytes
        {
            let (takes, host) = (found.simulated.host_peak, link.host_bytes);
            return Err(PlanError::Graph(GraphError(format!(
                "the plan holds {takes} in host memory, where it may hold {host}"
            ))));
        }
        Ok(GraphPlan {
            offloaded,
            ..finish(Planner::Auto, found, None)
        })
    }
}

/// The error when no plan can be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
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
    /// The chain contains an invalid value.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The planner does not take the chain or the number of segments.
    #[error("{0}")]
    Request(String),
}

impl PlanError {
    /// The error of a number of segments that is not between 1 and the number of stages.
    #[must_use]
    pub fn segments(segments: usize, stages: usize) -> PlanError {
        let plural = |count| if count == 1 { "" } else { "s" };
        PlanError::Request(format!(
            "cannot cut {stages} stage{} into {segments} segment{}: use 1 to {}",
            plural(stages),
            plural(segments),
            stages.max(1)
        ))
    }
}

/// The plan if it is within the budget; if not, it is the one with the smallest peak.
pub(super) fn fitting(plan: GraphPlan, request: &Request) -> Result<GraphPlan, PlanError> {
    match request.budget {
        Some(budget) if plan.simulated.peak > budget => Err(infeasible(plan, request)),
        _ => Ok(plan),
    }
}

pub(super) fn infeasible(leanest: GraphPlan, request: &Request) -> PlanError {
    PlanError::Infeasible {
        planner: request.planner,
        budget: request.most_bytes(),
        leanest: Box::new(leanest),
    }
}

pub(super) fn finish(planner: Planner, found: Found, schedule: Option<Vec<Action>>) -> GraphPlan {
    GraphPlan {
        program: found.program,
        simulated: found.simulated,
        planner,
        schedule,
        offloaded: Vec::new(),
    }
}
