//! Entry point of the planners for graphs: [`plan_graph`] takes a graph and a request and returns a program.

use super::borders::{borders, few_borders};
use super::link;
use super::plan::{GraphPlan, PlanError, finish, fitting, infeasible};
use super::staged::AllStaged;
use super::{Found, Graph, Program};
use crate::bytes::Bytes;
use crate::request::{Planner, Request};
use crate::search;
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
            searched(graph, recorded, request)
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
fn searched(graph: &Graph, recorded: Found, request: &Request) -> Result<GraphPlan, PlanError> {
    let begin = starts(graph, &recorded, request.budget)?;
    let leanest = || {
        smallest(graph, Bytes::ZERO, |even| {
            starts(even, &Found::of(even, &recorded.program), None)
        })
    };
    let on_device = fastest(graph, request, Bytes::ZERO, &begin, leanest)?;
    let best = match &request.link {
        None => {
            let finished = |found| finish(Planner::Auto, found, None);
            on_device.map(finished).map_err(finished)
        }
        Some(link) => {
            let (linked, tensors) = graph.with_all_transfers(link)?;
            let (begin, leanest) = match &on_device {
                Ok(found) => (vec![found.clone(), recorded.clone()], found.clone()),
                Err(leanest) => (begin, leanest.clone()),
            };
            let leanest = || smallest(&linked, link.host_bytes, |_| Ok(vec![leanest]));
            let found = fastest(&linked, request, link.host_bytes, &begin, leanest)?;
            let plan = |found: Found| -> Result<GraphPlan, PlanError> {
                let operations = found.program.operations();
                let (offloaded, operations) =
                    link::used(operations, &tensors, graph.operations.len());
                GraphPlan::of_operations(graph, Some(link), operations, offloaded)
            };
            match (on_device, found) {
                (Ok(own), Ok(found)) if found.simulated.time.0 < own.simulated.time.0 => {
                    Ok(plan(found)?)
                }
                (Ok(own), _) => Ok(finish(Planner::Auto, own, None)),
                (Err(_), Ok(found)) => Ok(plan(found)?),
                (Err(_), Err(leanest)) => Err(plan(leanest)?),
            }
        }
    };
    best.map_err(|leanest| infeasible(leanest, request))
}

/// The fastest program that is found within a budget and so many bytes on the host, or else that with the smallest peak.
fn fastest(
    graph: &Graph,
    request: &Request,
    host: Bytes,
    starts: &[Found],
    smallest: impl FnOnce() -> Result<Found, PlanError>,
) -> Result<Result<Found, Found>, PlanError> {
    let budget = request.most_bytes();
    let within =
        |starts: &[Found]| search::within(graph, budget, host, starts, request.effort.max(1));
    if let Some(found) = within(starts)? {
        return Ok(Ok(found));
    }
    let leanest = smallest()?;
    if leanest.peak() > budget {
        return Ok(Err(leanest));
    }
    let improved = within(std::slice::from_ref(&leanest))?;
    Ok(Ok(improved.unwrap_or(leanest)))
}

/// The program with the smallest peak that is found from some programs. All operations take the same time here: a budget that
/// was named once is met again, whatever else is measured.
fn smallest(
    graph: &Graph,
    host: Bytes,
    starts: impl FnOnce(&Graph) -> Result<Vec<Found>, PlanError>,
) -> Result<Found, PlanError> {
    let mut even = graph.clone();
    for operation in &mut even.operations {
        operation.seconds = Seconds(1e-6);
    }
    let starts = starts(&even)?;
    let program = search::smallest(&even, host, &starts)?;
    // The search counts a view that runs again as less than it may take.
    let found = Found::of(graph, &program);
    let leaner = starts
        .iter()
        .filter(|start| start.simulated.host_peak <= host);
    let leaner = leaner.min_by_key(|start| start.peak());
    match leaner.filter(|start| start.peak() < found.peak()) {
        Some(start) => Ok(Found::of(graph, &start.program)),
        None => Ok(found),
    }
}

/// The peaks of the programs over stages from which a search starts, as multiples of the budget.
const LARGER: [f64; 6] = [1.0, 1.05, 1.15, 1.3, 1.6, 2.2];
/// Programs over stages with about so many operations together are simulated to choose from, and at least some.
const SIMULATED: usize = 300_000;
const LEAST_SIMULATED: usize = 16;

/// Programs from which a search may reach a budget, or else the smallest peak: some of `optimal`, the recorded order, and that of
/// `optimal` with the smallest peak. A few stages will do: the search undoes what is lost, and a chain of 1,000 layers in its
/// smallest peak has a program of a million runs.
fn starts(graph: &Graph, recorded: &Found, budget: Option<Bytes>) -> Result<Vec<Found>, PlanError> {
    let few = (SIMULATED / graph.operations.len().max(1)).max(LEAST_SIMULATED);
    let all = match AllStaged::new(graph, &few_borders(graph), Planner::Optimal, few) {
        // The planners for chains reject these sizes.
        Err(PlanError::Chain(_)) => return Ok(vec![recorded.clone()]),
        all => all?,
    };
    let leanest = all.leanest();
    let budget = budget.or(leanest.map(|leanest| leanest.peak));
    let budget = budget.unwrap_or_default().0 as f64;
    let near = LARGER.map(|times| all.fastest_within(Bytes((budget * times) as u64)));
    let near = near.into_iter().flatten().map(|staged| all.program(staged));
    let leanest = leanest.map(|leanest| all.program(leanest));
    let mut starts: Vec<Found> = near
        .chain([Ok(recorded.clone())])
        .chain(leanest)
        .collect::<Result<_, _>>()?;
    starts.dedup_by(|one, before| one.program == before.program);
    Ok(starts)
}
