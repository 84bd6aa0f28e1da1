//! The storages of a graph: where each is made and read, also through views, as places in the list of operations.

use std::ops::Range;

use super::{Graph, TensorId};
use crate::bytes::Bytes;

/// Maximum share of the forward time that it takes to make a cheap tensor from given ones.
const CHEAP: f64 = 1e-3;

/// A storage, known by the tensor for which it is made (its *base*).
#[derive(Clone, Default)]
pub(super) struct Storage {
    pub(super) bytes: Bytes,
    /// Where it is made; `None` for given ones.
    pub(super) made: Option<usize>,
    /// Its last reader, and its last reader in the forward pass; its maker if there is none. Updates do not count.
    pub(super) last_read: usize,
    pub(super) last_forward_read: usize,
    /// Whether it counts where the forward pass is cut: it takes bytes, and is not cheap.
    counts: bool,
    pub(super) output: bool,
    /// Whether an update reads it.
    pub(super) updating: bool,
}

impl Storage {
    /// The points of the forward pass at which it counts as live; point p is before operation p.
    pub(super) fn live(&self) -> Range<usize> {
        match self.made {
            Some(made) if self.counts => made + 1..self.last_forward_read + 1,
            _ => 0..0,
        }
    }

    /// Whether one of some operations makes it.
    pub(super) fn made_in(&self, range: &Range<usize>) -> bool {
        self.made.is_some_and(|made| range.contains(&made))
    }
}

/// The storages of a valid graph, by base; `roots` has the base of each tensor.
pub(super) fn storages(graph: &Graph, roots: &[TensorId]) -> Vec<Storage> {
    let forward = graph.operations.iter().filter(|one| !one.backward);
    let cheap = CHEAP * forward.map(|one| one.seconds.0).sum::<f64>();
    // The seconds to make each tensor. An upper bound: shared ancestors count more than once.
    let mut seconds = vec![0.0; roots.len()];
    let mut storages = vec![Storage::default(); roots.len()];
    for (place, operation) in graph.operations.iter().enumerate() {
        let inputs: f64 = operation.inputs.iter().map(|t| seconds[t.index()]).sum();
        for output in &operation.outputs {
            seconds[output.index()] = inputs + operation.seconds.0;
        }
        for input in &operation.inputs {
            let storage = &mut storages[roots[input.index()].index()];
            if operation.updates.is_some() {
                storage.updating = true;
                continue;
            }
            storage.last_read = place;
            if !operation.backward {
                storage.last_forward_read = place;
            }
        }
        for &output in operation.outputs.iter().filter(|_| !operation.view) {
            let bytes = graph.tensor(output).bytes;
            storages[output.index()] = Storage {
                bytes,
                made: Some(place),
                last_read: place,
                last_forward_read: place,
                counts: !bytes.is_zero() && seconds[output.index()] >= cheap,
                ..Storage::default()
            };
        }
    }
    for output in graph.outputs() {
        storages[roots[output.index()].index()].output = true;
    }
    storages
}

/// At each of some places, the sum of the numbers whose ranges contain it.
pub(super) fn sums(
    places: &Range<usize>,
    numbers: impl Iterator<Item = (Range<usize>, u64)>,
) -> Vec<u64> {
    // First how much the sum changes at each place.
    let mut sums = vec![0_u64; places.len() + 1];
    for (range, number) in numbers {
        let [start, end] = [range.start, range.end]
            .map(|place| place.clamp(places.start, places.end) - places.start);
        sums[start] = sums[start].wrapping_add(number);
        sums[end] = sums[end].wrapping_sub(number);
    }
    for place in 1..sums.len() {
        sums[place] = sums[place].wrapping_add(sums[place - 1]);
    }
    sums
}
