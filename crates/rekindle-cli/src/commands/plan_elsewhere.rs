//! Planning in a process of its own: `rekindle plan-graph` and `rekindle plan-measured`, which no help shows.
//!
//! On the processor a budget bounds the memory of the process that trains. Planners fill tables that can be larger
//! than a small model, so `train` hands what was measured to another process of this program and gets a plan back, as
//! JSON over pipes: of a recorded step the request and the graph, a line each; of modules two lines (the request, what
//! graphs hold) and the chain, as a string. The answer is one line.

use std::{
    io::{self, BufRead, BufReader, Write, stdin},
    process::{ChildStdin, Command, Stdio},
};

use rekindle::profile::Measured;
use rekindle_plan::{
    Action, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Schedule, Seconds, Source,
    graph::{Graph, GraphPlan, GraphPlanError, GraphPlanner, GraphRequest, OperationId},
};
use rekindle_train::session::Planners;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    failure::{Failure, Outcome},
    output, parent,
};

/// The subcommand for recorded steps.
pub const GRAPH: &str = "plan-graph";
/// The subcommand for modules.
pub const MEASURED: &str = "plan-measured";

/// Plans in other processes of this program.
pub const PLANNERS: Planners = Planners {
    modules: measured_elsewhere,
    recorded: graph_elsewhere,
};

/// The answer of a child of this program to what `send` writes; `None` where there is none, for any reason.
fn ask<A: DeserializeOwned>(
    subcommand: &str,
    send: impl FnOnce(&mut ChildStdin) -> io::Result<()>,
) -> Option<A> {
    let mut child = parent::watched_later(&mut Command::new(std::env::current_exe().ok()?))
        .arg(subcommand)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // Held open until there is an answer: a child whose input is closed ends.
    let mut held = child.stdin.take();
    let sent = held.as_mut().map(send);
    let mut answer = String::new();
    let read = child
        .stdout
        .take()
        .map(|from| BufReader::new(from).read_line(&mut answer));
    // From here on the child may end either way.
    drop(held);
    child.wait().ok()?;
    sent?.ok()?;
    read?.ok()?;
    serde_json::from_str(&answer).ok()
}

/// The next line that was asked.
fn take<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<T, Failure> {
    let mut line = String::new();
    input.read_line(&mut line).map_err(Failure::other)?;
    serde_json::from_str(&line).map_err(Failure::usage)
}

fn answer(answer: &impl Serialize) -> Outcome {
    let answer = serde_json::to_string(answer).map_err(Failure::other)?;
    output::text(&format!("{answer}\n"))
}

#[derive(Serialize, Deserialize)]
enum GraphAnswer {
    Plan {
        planner: GraphPlanner,
        schedule: Option<Vec<Action>>,
        operations: Vec<OperationId>,
    },
    Infeasible {
        smallest: Bytes,
    },
    /// Anything else: the caller plans itself and meets the same error.
    Error,
}

/// Plans the graph that comes on standard input.
pub fn plan_graph() -> Outcome {
    let mut input = stdin().lock();
    let request: GraphRequest = take(&mut input)?;
    let graph: Graph = take(&mut input)?;
    drop(input);
    parent::watch();
    answer(&match rekindle_plan::graph::plan_graph(&graph, &request) {
        Ok(plan) => GraphAnswer::Plan {
            planner: plan.planner,
            schedule: plan.schedule.map(|schedule| schedule.actions().to_vec()),
            operations: plan.program.operations().to_vec(),
        },
        Err(GraphPlanError::Infeasible { smallest, .. }) => GraphAnswer::Infeasible { smallest },
        Err(_) => GraphAnswer::Error,
    })
}

fn graph_elsewhere(
    graph: &Graph,
    request: &GraphRequest,
) -> Option<Result<GraphPlan, GraphPlanError>> {
    let budget = request.budget?;
    let found = ask(GRAPH, |to| {
        serde_json::to_writer(&mut *to, request)?;
        to.write_all(b"\n")?;
        let mut to = io::BufWriter::new(to);
        serde_json::to_writer(&mut to, graph)?;
        to.write_all(b"\n")?;
        to.flush()
    });
    match found? {
        GraphAnswer::Plan {
            planner,
            schedule,
            operations,
        } => {
            let plan = GraphPlan::of_operations(graph, operations).ok()?;
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
        GraphAnswer::Infeasible { smallest } => Some(Err(GraphPlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
        })),
        GraphAnswer::Error => None,
    }
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Plan {
        planner: PlannerKind,
        source: Source,
        actions: Vec<Action>,
    },
    Infeasible {
        smallest: Bytes,
        smallest_of_all: Bytes,
    },
    /// Anything else: the caller plans itself and meets the same error.
    Error,
}

/// Plans the measured modules that come on standard input.
pub fn plan_measured() -> Outcome {
    let mut input = stdin().lock();
    let request: PlanRequest = take(&mut input)?;
    let (holds, backward_call_s) = take(&mut input)?;
    let chain: String = take(&mut input)?;
    drop(input);
    parent::watch();
    let chain = Chain::from_json(&chain).map_err(Failure::usage)?;
    let measured = Measured {
        chain,
        holds,
        backward_call_s,
    };
    answer(&match measured.plan(&request) {
        Ok(plan) => Answer::Plan {
            planner: plan.planner,
            source: plan.source,
            actions: plan.schedule.actions().to_vec(),
        },
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

fn measured_elsewhere(
    measured: &Measured,
    request: &PlanRequest,
) -> Option<Result<Plan, PlanError>> {
    let budget = request.budget?;
    let found = ask(MEASURED, |to| {
        serde_json::to_writer(&mut *to, request)?;
        to.write_all(b"\n")?;
        serde_json::to_writer(&mut *to, &(&measured.holds, measured.backward_call_s))?;
        let chain = measured.chain.to_json().map_err(io::Error::other)?;
        to.write_all(b"\n")?;
        serde_json::to_writer(&mut *to, &chain)?;
        to.write_all(b"\n")
    });
    match found? {
        Answer::Plan {
            planner,
            source,
            actions,
        } => {
            let schedule = Schedule::new(measured.chain.stages.len(), actions).ok()?;
            let plan = Plan {
                planner,
                schedule,
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
