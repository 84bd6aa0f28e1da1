//! Planning in a separate process.
//!
//! On the CPU a budget bounds the memory of the process that trains. Planners fill tables that can be larger than a
//! small model, so `train` sends the measured step to a [child process](crate::child) and receives a plan.

use std::borrow::Cow;

use rekindle_plan::{
    Action, Bytes, Schedule,
    graph::{Graph, GraphPlan, GraphPlanError, GraphPlanner, GraphRequest, OperationId, TensorId},
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
    /// The planner, the actions on stages if the plan is one of stages, the operations in order, and the tensors that go to
    /// the host.
    Plan(
        GraphPlanner,
        Option<Vec<Action>>,
        Vec<OperationId>,
        Vec<TensorId>,
    ),
    Infeasible {
        smallest: Bytes,
    },
    /// Anything else: the caller plans itself and meets the same error.
    Error,
}

/// Plans a recorded step, and answers.
pub fn answer(request: &GraphRequest, graph: &Graph) -> Outcome {
    let answer = match rekindle_plan::graph::plan_graph(graph, request) {
        Ok(plan) => Answer::Plan(
            plan.planner,
            plan.schedule.map(|schedule| schedule.actions().to_vec()),
            plan.program.operations().to_vec(),
            plan.offloaded,
        ),
        Err(GraphPlanError::Infeasible { smallest, .. }) => Answer::Infeasible { smallest },
        Err(_) => Answer::Error,
    };
    output::text(&serde_json::to_string(&answer).map_err(Failure::other)?)
}

/// Plans in another process of this program; `None` if it gives no answer, for any reason.
pub fn plan_elsewhere(
    graph: &Graph,
    request: &GraphRequest,
) -> Option<Result<GraphPlan, GraphPlanError>> {
    let budget = request.budget?;
    let task = Task::PlanGraph(*request, Cow::Borrowed(graph));
    match serde_json::from_str(&ask_to_the_end(&task).ok()?).ok()? {
        Answer::Plan(planner, schedule, operations, offloaded) => {
            let link = request.link.as_ref();
            let plan = GraphPlan::of_operations(graph, link, operations, offloaded).ok()?;
            let schedule = schedule.map(|actions| {
                let stages = actions.iter().filter_map(|action| action.stage());
                let stages = stages.map(|stage| stage.0 + 1).max().unwrap_or_default();
                Schedule::new(stages, actions)
            });
            Some(Ok(GraphPlan {
                planner,
                schedule: schedule.transpose().ok()?,
                ..plan
            }))
        }
        Answer::Infeasible { smallest } => Some(Err(GraphPlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
        })),
        Answer::Error => None,
    }
}
