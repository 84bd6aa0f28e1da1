//! Planning in a process of its own.
//!
//! On the CPU a budget bounds the memory of the process that trains. Planners fill tables that can be larger than a small
//! model, so `train` hands what was measured to a [child](crate::child) and gets a plan back.

use std::borrow::Cow;

use rekindle::profile::{Holds, Measured};
use rekindle_plan::{
    Action, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Schedule, Seconds, Source,
    graph::{Graph, GraphPlan, GraphPlanError, GraphPlanner, GraphRequest, OperationId, TensorId},
};
use rekindle_train::session::Planners;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    child::{Task, ask},
    failure::{Failure, Outcome},
    output,
};

/// Plans in other processes of this program.
pub const PLANNERS: Planners = Planners {
    modules: modules_elsewhere,
    recorded: graph_elsewhere,
};

/// What a child finds.
#[derive(Serialize, Deserialize)]
enum Answer<P> {
    Plan(P),
    Infeasible {
        smallest: Bytes,
        smallest_of_all: Bytes,
    },
    /// Anything else: the caller plans itself and meets the same error.
    Error,
}

/// The answer of a child; `None` where there is none, for any reason.
fn answer<P: DeserializeOwned>(task: &Task<'_>) -> Option<Answer<P>> {
    serde_json::from_str(&ask(task).ok()?).ok()
}

fn give<P: Serialize>(answer: &Answer<P>) -> Outcome {
    output::text(&serde_json::to_string(answer).map_err(Failure::other)?)
}

/// Of a recorded step: the planner, the actions on stages if it is one of stages, the operations in order, and the tensors
/// that go to the host.
type GraphAnswer = (
    GraphPlanner,
    Option<Vec<Action>>,
    Vec<OperationId>,
    Vec<TensorId>,
);

/// Plans a recorded step, and answers.
pub fn graph(request: &GraphRequest, graph: &Graph) -> Outcome {
    give(&match rekindle_plan::graph::plan_graph(graph, request) {
        Ok(plan) => Answer::<GraphAnswer>::Plan((
            plan.planner,
            plan.schedule.map(|schedule| schedule.actions().to_vec()),
            plan.program.operations().to_vec(),
            plan.offloaded,
        )),
        Err(GraphPlanError::Infeasible { smallest, .. }) => Answer::Infeasible {
            smallest,
            smallest_of_all: smallest,
        },
        Err(_) => Answer::Error,
    })
}

fn graph_elsewhere(
    graph: &Graph,
    request: &GraphRequest,
) -> Option<Result<GraphPlan, GraphPlanError>> {
    let budget = request.budget?;
    match answer::<GraphAnswer>(&Task::PlanGraph(*request, Cow::Borrowed(graph)))? {
        Answer::Plan((planner, schedule, operations, offloaded)) => {
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
        Answer::Infeasible { smallest, .. } => Some(Err(GraphPlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
        })),
        Answer::Error => None,
    }
}

/// Of modules: the planner, how the plan was found, and its actions.
type ModulesAnswer = (PlannerKind, Source, Vec<Action>);

/// Plans measured modules, and answers.
pub fn modules(
    request: &PlanRequest,
    chain: &str,
    holds: Vec<Holds>,
    backward_call_s: Seconds,
) -> Outcome {
    let measured = Measured {
        chain: Chain::from_json(chain).map_err(Failure::usage)?,
        holds,
        backward_call_s,
    };
    give(&match measured.plan(request) {
        Ok(plan) => Answer::<ModulesAnswer>::Plan((
            plan.planner,
            plan.source,
            plan.schedule.actions().to_vec(),
        )),
        Err(PlanError::Infeasible {
            smallest,
            smallest_of_all,
            ..
        }) => Answer::Infeasible {
            smallest,
            smallest_of_all,
        },
        Err(_) => Answer::Error,
    })
}

fn modules_elsewhere(
    measured: &Measured,
    request: &PlanRequest,
) -> Option<Result<Plan, PlanError>> {
    let budget = request.budget?;
    let task = Task::PlanModules {
        request: *request,
        chain: measured.chain.to_json().ok()?,
        holds: Cow::Borrowed(&measured.holds),
        backward_call_s: measured.backward_call_s,
    };
    match answer::<ModulesAnswer>(&task)? {
        Answer::Plan((planner, source, actions)) => {
            let plan = Plan {
                planner,
                schedule: Schedule::new(measured.chain.stages.len(), actions).ok()?,
                peak: Bytes(0),
                step: Seconds(0.0),
                source,
            };
            Some(Ok(measured.costed(plan).ok()?))
        }
        Answer::Infeasible {
            smallest,
            smallest_of_all,
        } => Some(Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
            smallest_of_all,
        })),
        Answer::Error => None,
    }
}
