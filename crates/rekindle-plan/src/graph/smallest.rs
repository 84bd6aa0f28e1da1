//! Finds the program with the smallest peak: bisection over budgets, each tried with several walks.
//!
//! A program holds at least the inputs, outputs and temporary bytes of each operation that it needs: this is the lower
//! bound of the search. The upper bound is the smallest peak of a program over stages. The result is not proven
//! minimal: with recomputation this is the black pebble game, whose least number of pebbles is PSPACE-complete
//! (Gilbert, Lengauer & Tarjan 1980, SIAM J. Computing 9(3)). Cost: at most that of two searches.

use super::found::Found;
use super::index::Index;
use super::search::{Effort, Search};
use super::{Graph, TensorId};
use crate::bytes::Bytes;

/// Number of times the interval of budgets is halved.
const HALVINGS: usize = 12;
/// Maximum number of searches below the smallest peak of all halvings.
const MOST_DESCENTS: usize = 8;
/// Minimum share by which one descent lowers the peak.
const DESCENT: f64 = 0.002;

/// The program found with the smallest peak. It is not the fastest with that peak: search again with that peak as the
/// budget.
pub(crate) fn smallest(
    graph: &Graph,
    index: &Index,
    host_room: Bytes,
    outlines: &[&Found],
) -> Option<Found> {
    let mut best = outlines
        .iter()
        .min_by(|a, b| a.peak().cmp(&b.peak()))
        .copied()?
        .clone();
    let floor = floor(graph, index);
    let mut low = floor;
    let mut halving = Search::new(graph, index, Effort::WHOLE, host_room);
    for _ in 0..HALVINGS {
        if low >= best.peak() {
            break;
        }
        let middle = Bytes(low.0 + (best.peak().0 - low.0) / 2);
        match halving.first_within(middle, &with(outlines, &best)) {
            Some(found) => best = found,
            None => low = middle + Bytes(1),
        }
    }
    for _ in 0..MOST_DESCENTS {
        if best.peak() <= floor {
            break;
        }
        let less = Bytes(((best.peak() - graph.fixed_bytes).0 as f64 * DESCENT) as u64 + 1);
        let effort = Effort {
            work: Effort::WHOLE.work / MOST_DESCENTS,
            ..Effort::WHOLE
        };
        let search = Search::new(graph, index, effort, host_room);
        match search.within(best.peak() - less, &with(outlines, &best)) {
            Some(found) => best = found,
            None => break,
        }
    }
    Some(best)
}

fn with<'a>(outlines: &[&'a Found], best: &'a Found) -> Vec<&'a Found> {
    let mut all = vec![best];
    all.extend(outlines);
    all
}

/// A lower bound on the peak of any program, from the operations that it needs.
fn floor(graph: &Graph, index: &Index) -> Bytes {
    let mut most = distinct(graph, index, graph.outputs());
    let mut wanted: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.output).collect();
    for operation in graph.operations.iter().rev() {
        // No transfer is ever needed.
        if operation.transfer.is_some() || !operation.outputs.iter().any(|t| wanted[t.index()]) {
            continue;
        }
        for input in &operation.inputs {
            wanted[input.index()] = true;
        }
        let held = if operation.in_place.is_some() {
            distinct(graph, index, operation.inputs.iter().copied())
        } else {
            let tensors = operation.inputs.iter().chain(&operation.outputs);
            distinct(graph, index, tensors.copied())
        };
        most = most.max(held + operation.temp_bytes);
    }
    graph.fixed_bytes + most
}

/// The bytes of the storages of some tensors, each counted once.
fn distinct(graph: &Graph, index: &Index, tensors: impl Iterator<Item = TensorId>) -> Bytes {
    let mut bases: Vec<TensorId> = tensors.map(|t| index.root(t)).collect();
    bases.sort_unstable();
    bases.dedup();
    let made = bases.into_iter().map(|t| graph.tensor(t));
    made.filter(|tensor| !tensor.given)
        .map(|tensor| tensor.bytes)
        .sum()
}
