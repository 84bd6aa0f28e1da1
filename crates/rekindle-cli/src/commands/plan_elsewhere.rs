//! Planning in a separate process.
//!
//! On the CPU a budget bounds the memory of the process that trains. Planners fill tables that can be larger than a
//! small model, so `train` sends the measured step to a [child process](crate::child) and receives a plan.

use std::borrow::Cow;

use rekindle_plan::{
    Planner, Request, Schedule,
    graph::{Graph, GraphPlan, GraphPlanError, Link, OperationId, TensorId},
};
use serde::{Deserialize, Serialize};

use crate::{
    child::{Task, ask_to_the_end},
    failure::{Failure, Outcome},
    output,
};

/// What a child finds.
#[derive(Serialize, Deserialize)]
enum Answer {
    Plan(Found),
    /// The plan with the smallest peak.
    Infeasible(Found),
    /// Anything else: the caller plans itself and meets the same error.
    Error,
}

/// A plan without its costs.
#[derive(Serialize, Deserialize)]
struct Found {
    planner: Planner,
    schedule: Option<Schedule>,
    operations: Vec<OperationId>,
    /// The tensors that go to the host.
    offloaded: Vec<TensorId>,
}

impl Found {
    fn of(plan: GraphPlan) -> Self {
        Self {
            planner: plan.planner,
            schedule: plan.schedule,
            operations: plan.program.operations().to_vec(),
            offloaded: plan.offloaded,
        }
    }

    fn plan(self, graph: &Graph, link: Option<&Link>) -> Option<GraphPlan> {
        let plan = GraphPlan::of_operations(graph, link, self.operations, self.offloaded).ok()?;
        Some(GraphPlan {
            planner: self.planner,
            schedule: self.schedule,
            ..plan
        })
    }
}

/// Plans a recorded step, and answers.
pub fn answer(request: &Request, graph: &Graph) -> Outcome {
    let answer = match rekindle_plan::graph::plan_graph(graph, request) {
        Ok(plan) => Answer::Plan(Found::of(plan)),
        Err(GraphPlanError::Infeasible { leanest, .. }) => Answer::Infeasible(Found::of(*leanest)),
        Err(_) => Answer::Error,
    };
    output::text(&serde_json::to_string(&answer).map_err(Failure::other)?)
}

/// Plans in another process of this program; `None` if it gives no answer, for any reason.
pub fn plan_elsewhere(
    graph: &Graph,
    request: &Request,
) -> Option<Result<GraphPlan, GraphPlanError>> {
    let (budget, link) = (request.budget?, request.link.as_ref());
    let task = Task::PlanGraph(*request, Cow::Borrowed(graph));
    match serde_json::from_str(&ask_to_the_end(&task).ok()?).ok()? {
        Answer::Plan(found) => Some(Ok(found.plan(graph, link)?)),
        Answer::Infeasible(found) => Some(Err(GraphPlanError::Infeasible {
            planner: request.planner,
            budget,
            leanest: Box::new(found.plan(graph, link)?),
        })),
        Answer::Error => None,
    }
}
