//! Entry point of the planners for graphs: [`plan_graph`] takes a graph and a request and returns a program.

use super::borders::{borders, few_borders};
use super::link;
use super::plan::{GraphPlan, PlanError, finish, fitting, infeasible};
use super::staged::AllStaged;
use super::{Found, Graph, OperationId, Program};
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
    let order = recorded.program.operations();
    let begin = starts(graph, order, request.budget)?;
    let leanest = || smallest(graph, Bytes::ZERO, |even| starts(even, order, None));
    let on_device = fastest(graph, request, Bytes::ZERO, &begin, leanest)?;
    let best = match &request.link {
        None => {
            let finished = |found| finish(Planner::Auto, found, None);
            on_device.map(finished).map_err(finished)
        }
        Some(link) => {
            let (linked, tensors) = graph.with_all_transfers(link)?;
            let (begin, leanest) = match &on_device {
                Ok(found) => (vec![found.order(), order.to_vec()], found.order()),
                Err(leanest) => (begin, leanest.order()),
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
    starts: &[Vec<OperationId>],
    smallest: impl FnOnce() -> Result<Found, PlanError>,
) -> Result<Result<Found, Found>, PlanError> {
    let budget = request.most_bytes();
    let effort = request.effort.max(1);
    let within = |starts: &[_]| search::within(graph, budget, host, starts, effort);
    if let Some(found) = within(starts)? {
        return Ok(Ok(found));
    }
    let leanest = smallest()?;
    if leanest.peak() > budget {
        return Ok(Err(leanest));
    }
    let improved = within(&[leanest.order()])?;
    Ok(Ok(improved.unwrap_or(leanest)))
}

/// The program with the smallest peak that is found from some programs. All operations take the same time here: a budget that
/// was named once is met again, whatever else is measured.
fn smallest(
    graph: &Graph,
    host: Bytes,
    starts: impl FnOnce(&Graph) -> Result<Vec<Vec<OperationId>>, PlanError>,
) -> Result<Found, PlanError> {
    let mut even = graph.clone();
    for operation in &mut even.operations {
        operation.seconds = Seconds(1e-6);
    }
    let starts = starts(&even)?;
    let mut least = Found::of(graph, &search::smallest(&even, host, &starts)?);
    // The search counts a view that runs again as less than it may take.
    for start in starts {
        let found = Found::of(graph, &Program::new(graph, start)?);
        if found.simulated.host_peak <= host && found.peak() < least.peak() {
            least = found;
        }
    }
    Ok(least)
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
