//! The least time of any program within a budget, by search over all states.
//!
//! A state is which tensors are held, in which storages, and which operations that must not repeat have run. Running
//! an operation costs its seconds; letting go of a tensor costs nothing and is always allowed, so every program's
//! liveness is one of the paths. Dijkstra's algorithm, so the first final state reached is the best: any order of
//! operations, any recomputation.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashSet};

use rekindle_plan::graph::{Graph, Operation, TensorId};

use super::tensor_ids;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct State {
    /// Each storage's bytes and tensors; ordered, so that equal states are equal.
    storages: BTreeSet<(BTreeSet<u32>, u64)>,
    /// Views of given tensors.
    free: BTreeSet<u32>,
    /// Operations that have run and must not run again.
    spent: BTreeSet<usize>,
}

impl State {
    fn holds(&self, graph: &Graph, tensor: TensorId) -> bool {
        graph.tensors[tensor.0 as usize].given
            || self.free.contains(&tensor.0)
            || self.storages.iter().any(|(s, _)| s.contains(&tensor.0))
    }

    fn bytes(&self) -> u64 {
        self.storages.iter().map(|(_, bytes)| bytes).sum()
    }

    fn host_bytes(&self, graph: &Graph) -> u64 {
        let held = self.storages.iter().flat_map(|(tensors, _)| tensors);
        let copies = held.map(|tensor| graph.tensors[*tensor as usize].host_bytes.0);
        copies.sum()
    }

    fn storage(&self, tensor: u32) -> Option<(BTreeSet<u32>, u64)> {
        self.storages
            .iter()
            .find(|(s, _)| s.contains(&tensor))
            .cloned()
    }

    fn without(&self, tensor: u32) -> State {
        let mut next = self.clone();
        next.free.remove(&tensor);
        if let Some(storage) = self.storage(tensor) {
            next.storages.remove(&storage);
            let mut rest = storage.clone();
            rest.0.remove(&tensor);
            if !rest.0.is_empty() {
                next.storages.insert(rest);
            }
        }
        next
    }

    /// The states after an operation: plainly, and in place.
    fn run(&self, graph: &Graph, number: usize, room: u64) -> Vec<State> {
        let operation = &graph.operations[number];
        let mut start = self.clone();
        for output in &operation.outputs {
            // The older value's last use was before.
            start = start.without(output.0);
        }
        if !operation.repeatable {
            start.spent.insert(number);
        }
        if operation.view {
            return start.view(graph, operation, room).into_iter().collect();
        }
        let bytes = |t: &TensorId| graph.tensors[t.0 as usize].bytes.0;
        let mut next = Vec::new();
        let new: u64 = operation.outputs.iter().map(bytes).sum();
        if start.bytes() + new + operation.temp_bytes.0 <= room {
            let mut plain = start.clone();
            for output in &operation.outputs {
                let storage = (BTreeSet::from([output.0]), bytes(output));
                plain.storages.insert(storage);
            }
            next.push(plain);
        }
        if let (Some(k), Some(output)) = (operation.in_place, operation.outputs.first()) {
            let input = operation.inputs[k];
            let once = operation.inputs.iter().filter(|t| **t == input).count() == 1;
            if let Some(storage) = start.storage(input.0)
                && once
                && storage.0.len() == 1
                && storage.1 == bytes(output)
                && start.bytes() + new - storage.1 + operation.temp_bytes.0 <= room
            {
                let mut taken = start.clone();
                taken.storages.remove(&storage);
                for output in &operation.outputs {
                    let storage = (BTreeSet::from([output.0]), bytes(output));
                    taken.storages.insert(storage);
                }
                next.push(taken);
            }
        }
        next
    }

    fn view(mut self, graph: &Graph, operation: &Operation, room: u64) -> Option<State> {
        if self.bytes() + operation.temp_bytes.0 > room {
            return None;
        }
        let base = operation.inputs[0];
        let outputs = operation.outputs.iter().map(|t| t.0);
        if graph.tensors[base.0 as usize].given || self.free.contains(&base.0) {
            self.free.extend(outputs);
        } else {
            let mut storage = self.storage(base.0)?;
            self.storages.remove(&storage);
            storage.0.extend(outputs);
            self.storages.insert(storage);
        }
        Some(self)
    }
}

/// The least whole seconds within a budget; `None` where nothing fits. Seconds must be whole.
pub fn least_time(graph: &Graph, budget: u64) -> Option<u64> {
    least_time_with_host(graph, budget, u64::MAX)
}

/// As [`least_time`], with so many bytes of copies on the host at most.
pub fn least_time_with_host(graph: &Graph, budget: u64, host: u64) -> Option<u64> {
    let room = budget.checked_sub(graph.fixed_bytes.0)?;
    let start = State {
        storages: BTreeSet::new(),
        free: BTreeSet::new(),
        spent: BTreeSet::new(),
    };
    let mut queue = BinaryHeap::from([Reverse((0, start))]);
    let mut done = HashSet::new();
    while let Some(Reverse((seconds, state))) = queue.pop() {
        if !done.insert(state.clone()) {
            continue;
        }
        let mut outputs = tensor_ids(graph).filter(|t| graph.tensors[t.0 as usize].output);
        if outputs.all(|t| state.holds(graph, t)) {
            return Some(seconds);
        }
        for (number, operation) in graph.operations.iter().enumerate() {
            let ready = operation.inputs.iter().all(|t| state.holds(graph, *t));
            let useless = operation.outputs.iter().all(|t| state.holds(graph, *t));
            if !ready || useless || state.spent.contains(&number) {
                continue;
            }
            for next in state.run(graph, number, room) {
                if !done.contains(&next) && next.host_bytes(graph) <= host {
                    queue.push(Reverse((seconds + operation.seconds.0 as u64, next)));
                }
            }
        }
        let held: Vec<u32> = state
            .storages
            .iter()
            .flat_map(|(tensors, _)| tensors.iter().copied())
            .chain(state.free.iter().copied())
            .collect();
        for tensor in held {
            let next = state.without(tensor);
            if !done.contains(&next) {
                queue.push(Reverse((seconds, next)));
            }
        }
    }
    None
}

/// The smallest budget that any program fits, at most `most`.
pub fn smallest_peak(graph: &Graph, most: u64) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if least_time(graph, middle).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}
