//! The kind of program requested from a planner.

use rekindle_plan::{
    Bytes, Planner, Request,
    graph::{Graph, GraphPlan, GraphPlanError, Link, OperationId, TensorId, plan_graph},
};

use super::{RecordError, options::RESERVE};

/// Plans in another process, or returns `None` if that is impossible. Planners take memory, which on the CPU backend
/// counts towards the budget.
pub type PlanElsewhere = fn(&Graph, &Request) -> Option<Result<GraphPlan, GraphPlanError>>;

/// The kind of program that is requested.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// The planner's fastest program that fits.
    Planner(Planner),
    /// These operations of the recording, with transfers of some of its tensors.
    Operations {
        /// The operations; numbers after the recording's are [transfers](Graph::with_transfers).
        operations: Vec<OperationId>,
        /// The offloaded tensors.
        offloaded: Vec<TensorId>,
    },
}

impl From<Planner> for Wanted {
    fn from(planner: Planner) -> Self {
        Self::Planner(planner)
    }
}

impl Wanted {
    /// The share of a budget that the plan may not take: half of it for a program that was made elsewhere within the whole,
    /// because this process may hold a little more.
    pub(super) fn reserve(&self) -> f64 {
        match self {
            Self::Planner(_) => RESERVE,
            Self::Operations { .. } => RESERVE / 2.0,
        }
    }

    /// The plan for a graph; of given operations, whether they fit or not.
    pub(super) fn plan(
        &self,
        graph: &Graph,
        budget: Option<Bytes>,
        elsewhere: Option<PlanElsewhere>,
        link: Option<Link>,
    ) -> Result<GraphPlan, GraphPlanError> {
        match self {
            Self::Planner(planner) => {
                let request = Request {
                    budget,
                    planner: *planner,
                    link,
                };
                let planned = elsewhere.and_then(|plan| plan(graph, &request));
                planned.unwrap_or_else(|| plan_graph(graph, &request))
            }
            Self::Operations {
                operations,
                offloaded,
            } => {
                let (operations, offloaded) = (operations.clone(), offloaded.clone());
                GraphPlan::of_operations(graph, link.as_ref(), operations, offloaded)
            }
        }
    }
}

/// A planner's plan, or its one with the smallest peak, and whether it fits; `apart` bytes are in use before or after the
/// step.
pub(super) fn fitting(
    planned: Result<GraphPlan, GraphPlanError>,
    apart: Bytes,
    within: Option<Bytes>,
) -> Result<(GraphPlan, bool), RecordError> {
    match planned {
        Ok(plan) => {
            let peak = plan.simulated.peak.max(apart);
            Ok((plan, within.is_none_or(|within| peak <= within)))
        }
        Err(GraphPlanError::Infeasible { leanest, .. }) => Ok((*leanest, false)),
        Err(error) => Err(error.into()),
    }
}
