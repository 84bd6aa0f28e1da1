//! Plans for graphs: [`plan_graph`] takes a graph and a request and returns a program, or an error when there is none.

use std::collections::HashSet;

use super::borders::borders;
use super::link::Link;
use super::staged::{Staged, all_staged, best};
use super::stages::Stages;
use super::{Graph, GraphError, OperationId, Program, Simulated, TensorId, simulate};
use crate::bytes::Bytes;
use crate::chain::ChainError;
use crate::request::{Planner, Request};
use crate::schedule::{Schedule, StageId};
use crate::search::search;
use crate::seconds::Seconds;

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
    pub schedule: Option<Schedule>,
    /// The offloaded tensors. The program belongs to the graph [with transfers](Graph::linked) of these.
    pub offloaded: Vec<TensorId>,
}

impl GraphPlan {
    /// First and last stage of each segment that is recomputed as a whole, if the program was made so.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        self.schedule.as_ref()?.segments()
    }

    pub(super) fn new(graph: &Graph, program: Program, planner: Planner) -> GraphPlan {
        GraphPlan {
            simulated: simulate(graph, &program),
            program,
            planner,
            schedule: None,
            offloaded: Vec::new(),
        }
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
        let plan = GraphPlan::of_program(&linked, &Program::new(&linked, operations)?, offloaded);
        let takes = plan.simulated.host_peak;
        match link.map(|link| link.host_bytes) {
            Some(host) if takes > host => Err(PlanError::Graph(GraphError(format!(
                "the plan holds {takes} in host memory, where it may hold {host}"
            )))),
            _ => Ok(plan),
        }
    }

    /// The plan of a program of the graph with transfers of `offloaded`, without runs whose results are unused.
    pub(crate) fn of_program(
        linked: &Graph,
        program: &Program,
        offloaded: Vec<TensorId>,
    ) -> GraphPlan {
        GraphPlan {
            offloaded,
            ..GraphPlan::new(linked, program.without_dead_runs(linked), Planner::Auto)
        }
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
        Some(budget) if plan.simulated.peak > budget => Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            leanest: Box::new(plan),
        }),
        _ => Ok(plan),
    }
}

/// Makes a plan.
///
/// `none` is the recorded order. `segments` and `optimal` plan over the stages between borders (`borders.rs`), and
/// return their fastest program that fits. `auto` is the recorded order if that fits, else the program of a search over all
/// operations; with a link, it offloads tensors if that is faster than recomputing, or if nothing else fits. No plan exceeds
/// the budget.
///
/// # Errors
/// [`PlanError::Infeasible`] with the planner's program of the smallest peak, and other errors for an invalid graph or
/// request.
pub fn plan_graph(graph: &Graph, request: &Request) -> Result<GraphPlan, PlanError> {
    graph.validate()?;
    let recorded = Program::recorded(graph)?.without_dead_runs(graph);
    let recorded = GraphPlan::new(graph, recorded, Planner::None);
    let plan = match request.planner {
        Planner::Auto if recorded.simulated.peak > request.most_bytes() => {
            searched(graph, recorded.program.operations(), request)?
        }
        Planner::None | Planner::Auto => recorded,
        planner @ (Planner::Segments(_) | Planner::Optimal) => {
            // For `segments`, whole segments are requested: hold nothing that they would recompute.
            let cuts = cuts(graph, false, planner == Planner::Optimal);
            let all = all_staged(graph, &cuts, planner, None, usize::MAX)?;
            let best = best(&all, request)?;
            match planner {
                Planner::Segments(Some(_)) => best.with_moved_starts()?.plan(planner)?,
                _ => best.plan(planner)?,
            }
        }
    };
    fitting(plan, request)
}

/// The graph cut at its borders; where storages cross them that may be held, a second time with these held.
fn cuts(graph: &Graph, few: bool, holding: bool) -> Vec<Stages> {
    let borders = borders(graph, few);
    let crosses = holding && borders.iter().any(|border| border.live > 1);
    let most_crossed = [usize::MAX].into_iter().chain(crosses.then_some(1));
    let stages = most_crossed.map(|most| Stages::new(graph, &borders, most));
    stages.collect()
}

/// The plan of a search; with a link, the better of one that keeps everything on the device and one that may offload.
fn searched(
    graph: &Graph,
    recorded: &[OperationId],
    request: &Request,
) -> Result<GraphPlan, PlanError> {
    let begin = starts(graph, recorded, request.budget)?;
    let of_smallest = || {
        let mut even = graph.clone();
        for operation in &mut even.operations {
            operation.seconds = Seconds(1.0);
        }
        let last = starts(&even, recorded, None)?.pop();
        Ok(last.unwrap_or_else(|| recorded.to_vec()))
    };
    let own = search(graph, request, None, &begin, of_smallest)?;
    let Some(link) = &request.link else {
        return Ok(own);
    };
    let found = own.program.operations().to_vec();
    let begin = [found.clone(), recorded.to_vec()];
    let moving = search(graph, request, Some(link), &begin, || Ok(found))?;
    let fits = |plan: &GraphPlan| plan.simulated.peak <= request.most_bytes();
    let faster = moving.simulated.time.0 < own.simulated.time.0;
    match fits(&own) && !(fits(&moving) && faster) {
        true => Ok(own),
        false => Ok(moving),
    }
}

/// The peaks of the programs over stages from which a search starts, as multiples of the budget.
const LARGER: [f64; 6] = [1.0, 1.05, 1.15, 1.3, 1.6, 2.2];
/// Programs over stages with about so many operations together are simulated to choose from, and at least some.
const SIMULATED: usize = 300_000;
const LEAST_SIMULATED: usize = 16;

/// The operations of programs from which a search may reach a budget: some of `optimal` with peaks near it, the recorded order,
/// and last that of `optimal` with the smallest peak. A few stages will do: the search undoes what is lost, and a chain of 1,000
/// layers in its smallest peak has a program of a million runs.
fn starts(
    graph: &Graph,
    recorded: &[OperationId],
    budget: Option<Bytes>,
) -> Result<Vec<Vec<OperationId>>, PlanError> {
    let few = (SIMULATED / graph.operations.len().max(1)).max(LEAST_SIMULATED);
    let cuts = cuts(graph, true, true);
    let all = match all_staged(graph, &cuts, Planner::Optimal, None, few) {
        // The planners for chains reject these sizes.
        Err(PlanError::Chain(_)) => return Ok(vec![recorded.to_vec()]),
        all => all?,
    };
    let leanest = all.last();
    let within = |budget: Bytes| LARGER.map(|times| Bytes((budget.0 as f64 * times) as u64));
    let near = budget.into_iter().flat_map(within);
    let near = near.filter_map(|within| all.iter().find(|staged| staged.peak <= within));
    let order = |staged: &Staged<'_>| Ok(staged.program()?.operations().to_vec());
    let near = near.map(order);
    let starts = near
        .chain([Ok(recorded.to_vec())])
        .chain(leanest.map(order));
    let mut starts = starts.collect::<Result<Vec<_>, PlanError>>()?;
    let mut known = HashSet::new();
    starts.retain(|start| known.insert(start.clone()));
    Ok(starts)
}
