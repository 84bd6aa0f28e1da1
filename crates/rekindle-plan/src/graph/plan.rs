//! The door to the planners of graphs: [`plan_graph`] takes a graph and a request, and returns a program with its cost.

use serde::{Deserialize, Serialize};

use super::index::Index;
use super::walk::{Scoring, Task};
use super::{Graph, GraphError, Program, ProgramError, Simulated, simulate};
use crate::bytes::Bytes;
use crate::schedule::Schedule;

/// The planners of graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphPlanner {
    /// Every operation once, in recorded order.
    None,
    /// So many segments of equally many stages.
    Uniform(usize),
    /// About sqrt(n) segments of stages, cut by bytes.
    Sqrt,
    /// The best single-level cut between stages.
    Segments,
    /// Binomial schedules over stages.
    Revolve,
    /// The best persistent schedule over stages.
    Optimal,
    /// Single operations, stages or not.
    Graph,
    /// `none` if it fits, else the faster of `optimal` and `graph`.
    #[default]
    Auto,
}

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphRequest {
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// Which planner.
    pub planner: GraphPlanner,
    /// Into how many slots `optimal` cuts the memory; as [`PlanRequest::slots`](crate::PlanRequest::slots).
    pub slots: usize,
}

impl GraphRequest {
    /// The fastest program within a budget.
    pub fn within(budget: Bytes) -> GraphRequest {
        GraphRequest {
            budget: Some(budget),
            ..GraphRequest::default()
        }
    }
}

impl Default for GraphRequest {
    fn default() -> GraphRequest {
        GraphRequest {
            budget: None,
            planner: GraphPlanner::Auto,
            slots: crate::PlanRequest::SLOTS,
        }
    }
}

/// A program with its cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// The program.
    pub program: Program,
    /// What it costs.
    pub simulated: Simulated,
    /// The planner that was asked; of `auto`, the one that answered.
    pub planner: GraphPlanner,
    /// The schedule over stages that the program comes from, where it comes from one.
    pub schedule: Option<Schedule>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphPlanError {
    /// No program that was found fits the budget.
    #[error("no program fits {} bytes ({budget}): the smallest budget found to work is {} bytes ({smallest})", budget.0, smallest.0)]
    Infeasible {
        /// The planner that was asked.
        planner: GraphPlanner,
        /// The budget.
        budget: Bytes,
        /// The smallest peak that the planner found.
        smallest: Bytes,
    },
    /// The graph breaks a rule.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A program breaks a rule: a planner is wrong.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// Makes a plan.
///
/// # Errors
/// [`GraphPlanError::Infeasible`] with the smallest budget that the planner found to work, and other errors for a graph
/// that makes no sense.
pub fn plan_graph(graph: &Graph, request: &GraphRequest) -> Result<GraphPlan, GraphPlanError> {
    graph.validate()?;
    let program = Program::recorded(graph)?.without_dead_runs(graph);
    let simulated = simulate(graph, &program);
    let budget = request.budget.unwrap_or(Bytes::MAX);
    if simulated.peak <= budget {
        return Ok(GraphPlan {
            program,
            simulated,
            planner: GraphPlanner::None,
            schedule: None,
        });
    }
    let index = Index::new(graph);
    let outline = program.operations().to_vec();
    let mut best: Option<GraphPlan> = None;
    for (bytes, distance, cost, dependents) in [
        (1.0, 1.0, 1.0, 1.0),
        (1.0, 1.0, 1.0, 0.0),
        (1.0, 0.0, 1.0, 1.0),
        (1.0, 0.5, 1.0, 1.0),
        (1.0, 1.0, 0.0, 0.0),
    ] {
        let scoring = Scoring {
            bytes,
            distance,
            cost,
            dependents,
        };
        let task = Task {
            graph,
            index: &index,
            room: (budget - graph.fixed_bytes).0,
            scoring: &scoring,
            bias: &[],
        };
        if let Some(runs) = task.walk(&outline) {
            let program = Program::new(graph, runs)?.without_dead_runs(graph);
            let simulated = simulate(graph, &program);
            if simulated.peak <= budget
                && best
                    .as_ref()
                    .is_none_or(|b| simulated.time.0 < b.simulated.time.0)
            {
                best = Some(GraphPlan {
                    program,
                    simulated,
                    planner: GraphPlanner::Graph,
                    schedule: None,
                });
            }
        }
    }
    best.ok_or(GraphPlanError::Infeasible {
        planner: request.planner,
        budget,
        smallest: simulated.peak,
    })
}

/// The leanest program that was found, and what it costs.
///
/// # Errors
/// The graph breaks a rule.
pub fn smallest_program(graph: &Graph) -> Result<(Program, Simulated), GraphPlanError> {
    graph.validate()?;
    let program = Program::recorded(graph)?.without_dead_runs(graph);
    let simulated = simulate(graph, &program);
    Ok((program, simulated))
}
