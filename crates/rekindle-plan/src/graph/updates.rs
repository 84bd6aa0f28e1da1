//! Parameter updates inside the backward pass: the point at which each may run in a program.
//!
//! An update reads a gradient and gives a parameter a new value. Operations of the backward pass and recomputes read
//! the old value, so the update runs after the last of these in a program; after the update, its gradient is dead. A
//! view of a parameter counts as the parameter: an update while a view is live would need a second storage. Cost:
//! O(operations and their tensors).

use super::{Graph, OperationId, TensorId};

/// The operations, with each update moved after the last step that makes its inputs and the last step that reads the
/// value it replaces. An update that is moved to a later point reads the inputs made for it before.
pub(super) fn settled(graph: &Graph, operations: Vec<OperationId>) -> Vec<OperationId> {
    if graph.updates().is_empty() {
        return operations;
    }
    let roots = graph.roots();
    let mut made: Vec<Option<usize>> = vec![None; graph.tensors.len()];
    let mut read: Vec<Option<usize>> = vec![None; graph.tensors.len()];
    let mut updates: Vec<(Option<usize>, OperationId, TensorId)> = Vec::new();
    let mut others: Vec<OperationId> = Vec::with_capacity(operations.len());
    for id in operations {
        let operation = graph.operation(id);
        if let Some(tensor) = operation.updates {
            let inputs = operation.inputs.iter();
            let last = inputs.map(|input| made[input.index()]).max().flatten();
            updates.push((last, id, tensor));
            continue;
        }
        let step = Some(others.len());
        others.push(id);
        for input in &operation.inputs {
            read[roots[input.index()].index()] = step;
        }
        for output in &operation.outputs {
            made[output.index()] = step;
        }
    }
    for (place, _, tensor) in &mut updates {
        *place = (*place).max(read[tensor.index()]);
    }
    updates.sort_by_key(|(place, ..)| *place);
    let mut updates = updates.into_iter().peekable();
    let mut settled = Vec::with_capacity(others.len() + updates.len());
    let mut up_to = |place: Option<usize>, settled: &mut Vec<OperationId>| {
        while let Some((_, id, _)) = updates.next_if(|(at, ..)| *at <= place) {
            settled.push(id);
        }
    };
    up_to(None, &mut settled);
    for (step, id) in others.into_iter().enumerate() {
        settled.push(id);
        up_to(Some(step), &mut settled);
    }
    settled
}
