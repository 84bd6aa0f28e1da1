//! `rekindle plan --graph`: plans a recorded step.
//!
//! On the CPU a budget bounds the memory of the process that trains. Planners fill tables that can be larger than a
//! small model, so `train` sends the measured step to [a process](crate::child) of this command and receives a plan.

use std::{
    io::{self, Write},
    path::Path,
};

use rekindle::record::PlanSummary;
use rekindle_plan::{
    Bytes, PlanError, Planner, Request,
    graph::{Graph, GraphPlan, OperationId, plan_graph},
    schedule::Schedule,
};
use rekindle_train::session::Infeasible;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    child, exit,
    failure::{Failure, Outcome},
    input, output,
    progress::planning,
    summary::plan_line,
    terminal,
};

/// Format tag of [`Program`].
pub const PROGRAM_FORMAT: &str = "rekindle-program/2";

/// What `plan --graph --json` writes.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    format: String,
    /// Whether it is within the budget; if not, it is the one with the smallest peak that was found.
    feasible: bool,
    /// The plan in numbers.
    #[serde(flatten)]
    plan: PlanSummary,
    /// The operations to run, in order, as places in the graph.
    program: Vec<OperationId>,
}

impl Program {
    fn write(graph: &Graph, plan: &GraphPlan, budget: Option<Bytes>, feasible: bool) -> Outcome {
        output::json_line(&Self {
            format: PROGRAM_FORMAT.into(),
            feasible,
            plan: summary(graph, plan, budget)?,
            program: plan.program.operations().to_vec(),
        })
    }

    /// The plan for the graph that the program was requested for.
    fn plan(self, graph: &Graph) -> Option<GraphPlan> {
        let schedule = self.plan.segments.map(|segments| {
            let ends = segments.iter().map(|(_, last)| last.0 + 1);
            Schedule::of_segments(&ends.collect::<Vec<_>>())
        });
        let plan = GraphPlan::of_operations(graph, None, self.program, Vec::new()).ok()?;
        Some(GraphPlan {
            planner: self.plan.planner,
            schedule,
            ..plan
        })
    }
}

/// Reads the graph in a file, or on standard input if its path is `-`.
pub fn read(path: &Path) -> Result<Graph, Failure> {
    let text = match path.as_os_str().as_encoded_bytes() {
        b"-" => io::read_to_string(io::stdin()).map_err(Failure::usage)?,
        _ => input::text(path)?,
    };
    serde_json::from_str(&text).map_err(|error| no_graph(path, error))
}

/// The peak of a graph's recorded order.
pub fn plain_peak(path: &Path, graph: &Graph) -> Result<Bytes, Failure> {
    let plain = plan_graph(graph, &Request::of(Planner::None, None));
    let plain = plain.map_err(|error| no_graph(path, error))?;
    Ok(plain.simulated.peak)
}

fn summary(graph: &Graph, plan: &GraphPlan, budget: Option<Bytes>) -> Result<PlanSummary, Failure> {
    PlanSummary::of_graph(graph, plan, budget).map_err(Failure::other)
}

fn no_graph(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: no graph of a step: {error}", path.display()))
        .help("what `rekindle profile CONFIG -o FILE` writes has one, as `profile.step.graph`")
}

/// Plans for the graph in a file.
pub fn of_graph(path: &Path, graph: &Graph, request: &Request, json: bool) -> Outcome {
    match planning(|| plan_graph(graph, request)) {
        Ok(plan) if json => Program::write(graph, &plan, request.budget, true),
        Ok(plan) => {
            let line = plan_line(&summary(graph, &plan, request.budget)?, 1);
            output::text(&format!("{}\n", terminal::wrapped(&line, "  ")))
        }
        Err(PlanError::Infeasible {
            planner,
            budget,
            leanest,
        }) => {
            if json {
                Program::write(graph, &leanest, request.budget, false)?;
            }
            let smallest = leanest.simulated.peak;
            Err(Infeasible {
                planner,
                budget,
                smallest,
                smallest_of_all: smallest,
                floor: None,
                batch: None,
            }
            .into())
        }
        Err(PlanError::Graph(error)) => Err(no_graph(path, error)),
        Err(error) => Err(Failure::usage(error)),
    }
}

/// Plans in another process of this program; `None` if it gives no answer, for any reason. It is awaited even if this
/// process is asked to stop: otherwise this process would plan itself, in memory that a budget bounds.
pub fn plan_elsewhere(graph: &Graph, request: &Request) -> Option<Result<GraphPlan, PlanError>> {
    let budget = request.budget.filter(|_| request.link.is_none())?;
    // No size of 0 can be typed.
    let [typed, effort] = [format!("{}B", budget.0.max(1)), request.effort.to_string()];
    let words = ["plan", "--graph", "-", "--json", "--budget", &typed];
    let words = words.into_iter().chain(["--effort", &effort]);
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    match request.planner {
        Planner::Segments(Some(segments)) => {
            words.extend(["--segments".into(), segments.to_string()])
        }
        planner => words.extend(["--planner".into(), planner.to_string()]),
    }
    let write = |to: &mut dyn Write| Ok(serde_json::to_writer(to, graph)?);
    let ended = child::run(&words, write, || false).ok()?;
    if ![exit::DONE, exit::NO_PLAN].contains(&ended.code) {
        return None;
    }
    let program: Program = serde_json::from_str(&ended.stdout).ok()?;
    let feasible = program.feasible;
    let plan = program.plan(graph)?;
    Some(match feasible {
        true => Ok(plan),
        false => Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            leanest: Box::new(plan),
        }),
    })
}
