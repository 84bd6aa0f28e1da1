//! A second simulator, as slow and plain as the rules: at every step it looks ahead to find what is still needed.

use std::collections::BTreeSet;

use rekindle_plan::graph::{Graph, OperationId, TensorId};

use super::tensor_ids;

/// Peak and time of a list of operations, and what is resident after each.
pub struct Naive {
    pub peak: u64,
    pub seconds: f64,
    pub resident: Vec<u64>,
}

/// Whether a value of `tensor` that exists after `step` is read later, before it is made again.
pub fn needed_after(graph: &Graph, list: &[OperationId], step: usize, tensor: TensorId) -> bool {
    for id in &list[step + 1..] {
        let operation = &graph.operations[id.0 as usize];
        if operation.inputs.contains(&tensor) {
            return true;
        }
        if operation.outputs.contains(&tensor) {
            return false;
        }
    }
    graph.tensors[tensor.0 as usize].output
}

/// `None` where a step reads what is not there or runs what must not run again.
pub fn simulate(graph: &Graph, list: &[OperationId]) -> Option<Naive> {
    // A storage is a set of tensors with a size.
    let mut storages: Vec<(u64, BTreeSet<TensorId>)> = Vec::new();
    let mut ran: BTreeSet<OperationId> = BTreeSet::new();
    let fixed = graph.fixed_bytes.0;
    let mut run = Naive {
        peak: fixed,
        seconds: 0.0,
        resident: Vec::new(),
    };
    // Views of given tensors, which have no storage of their own.
    let mut free: BTreeSet<TensorId> = tensor_ids(graph)
        .filter(|t| graph.tensors[t.0 as usize].given)
        .collect();
    for (step, id) in list.iter().enumerate() {
        let operation = &graph.operations[id.0 as usize];
        if !ran.insert(*id) && !operation.repeatable {
            return None;
        }
        let there = |t: &TensorId| free.contains(t) || storages.iter().any(|(_, s)| s.contains(t));
        if !operation.inputs.iter().all(there) {
            return None;
        }
        let before: u64 = storages.iter().map(|(bytes, _)| bytes).sum();
        let dying = |t: &TensorId| !needed_after(graph, list, step, *t);
        let mut new = 0;
        if operation.view {
            let base = operation.inputs[0];
            match storages.iter_mut().find(|(_, s)| s.contains(&base)) {
                Some((_, tensors)) => tensors.extend(&operation.outputs),
                None => free.extend(&operation.outputs),
            }
        } else {
            for (number, output) in operation.outputs.iter().enumerate() {
                let bytes = graph.tensors[output.0 as usize].bytes.0;
                let replaced = operation.in_place.filter(|_| number == 0).and_then(|k| {
                    let input = operation.inputs[k];
                    let once = operation.inputs.iter().filter(|t| **t == input).count() == 1;
                    let storage = storages.iter().position(|(_, s)| s.contains(&input))?;
                    let (size, tensors) = &storages[storage];
                    (once && dying(&input) && *size == bytes && tensors.len() == 1)
                        .then_some(storage)
                });
                match replaced {
                    Some(storage) => storages[storage].1 = BTreeSet::from([*output]),
                    None => {
                        storages.push((bytes, BTreeSet::from([*output])));
                        new += bytes;
                    }
                }
            }
        }
        run.peak = run.peak.max(fixed + before + new + operation.temp_bytes.0);
        run.seconds += operation.seconds.0;
        for (_, tensors) in &mut storages {
            tensors.retain(|t| needed_after(graph, list, step, *t));
        }
        storages.retain(|(_, tensors)| !tensors.is_empty());
        free.retain(|t| graph.tensors[t.0 as usize].given || needed_after(graph, list, step, *t));
        let held: u64 = storages.iter().map(|(bytes, _)| bytes).sum();
        run.resident.push(fixed + held);
    }
    let mut outputs = tensor_ids(graph).filter(|t| graph.tensors[t.0 as usize].output);
    outputs
        .all(|t| free.contains(&t) || storages.iter().any(|(_, s)| s.contains(&t)))
        .then_some(run)
}
