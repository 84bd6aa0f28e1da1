//! Entry point of the planners for graphs: [`plan_graph`] takes a graph and a request and returns a program.

use super::borders::{borders, few_borders};
use super::plan::{GraphPlan, PlanError, finish, fitting, infeasible};
use super::staged::AllStaged;
use super::{Found, Graph, OperationId, Program};
use crate::bytes::Bytes;
use crate::request::{Planner, Request};
use crate::search::search;
use crate::seconds::Seconds;

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
    let recorded = Found::of(graph, &Program::recorded(graph)?);
    match request.planner {
        Planner::Auto if recorded.peak() > request.most_bytes() => {
            searched(graph, recorded.program.operations(), request)
        }
        Planner::None | Planner::Auto => fitting(finish(Planner::None, recorded, None), request),
        planner @ (Planner::Segments(_) | Planner::Optimal) => {
            let mut all = AllStaged::new(graph, &borders(graph), planner, usize::MAX)?;
            if let Planner::Segments(Some(_)) = planner {
                all.move_starts()?;
            }
            all.best(planner, request)
        }
    }
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
        starts(&even, recorded, None)
    };
    let own = search(graph, request, None, &begin, of_smallest)?;
    let (Ok(plan) | Err(plan)) = &own;
    let begin = vec![plan.program.operations().to_vec(), recorded.to_vec()];
    let best = match &request.link {
        None => own,
        Some(link) => {
            let moving = search(graph, request, Some(link), &begin, || Ok(begin.clone()))?;
            match (own, moving) {
                (Ok(own), Ok(moving)) if moving.simulated.time.0 < own.simulated.time.0 => {
                    Ok(moving)
                }
                (Ok(own), _) => Ok(own),
                (Err(_), moving) => moving,
            }
        }
    };
    best.map_err(|leanest| infeasible(leanest, request))
}

/// The peaks of the programs over stages from which a search starts, as multiples of the budget.
const LARGER: [f64; 6] = [1.0, 1.05, 1.15, 1.3, 1.6, 2.2];
/// Programs over stages with about so many operations together are simulated to choose from, and at least some.
const SIMULATED: usize = 300_000;
const LEAST_SIMULATED: usize = 16;

/// The operations of programs from which a search may reach a budget, or else the smallest peak: some of `optimal`, the recorded
/// order, and that of `optimal` with the smallest peak. A few stages will do: the search undoes what is lost, and a chain of 1,000
/// layers in its smallest peak has a program of a million runs.
fn starts(
    graph: &Graph,
    recorded: &[OperationId],
    budget: Option<Bytes>,
) -> Result<Vec<Vec<OperationId>>, PlanError> {
    let few = (SIMULATED / graph.operations.len().max(1)).max(LEAST_SIMULATED);
    let all = match AllStaged::new(graph, &few_borders(graph), Planner::Optimal, few) {
        // The planners for chains reject these sizes.
        Err(PlanError::Chain(_)) => return Ok(vec![recorded.to_vec()]),
        all => all?,
    };
    let leanest = all.leanest();
    let budget = budget.or(leanest.map(|leanest| leanest.peak));
    let budget = budget.unwrap_or_default().0 as f64;
    let near = LARGER.map(|times| all.fastest_within(Bytes((budget * times) as u64)));
    let order = |staged| all.program(staged).map(|found| found.order());
    let near = near.into_iter().flatten().map(order);
    let mut starts: Vec<Vec<OperationId>> = Vec::new();
    for start in near
        .chain([Ok(recorded.to_vec())])
        .chain(leanest.map(order))
    {
        let start = start?;
        if !starts.contains(&start) {
            starts.push(start);
        }
    }
    Ok(starts)
}
