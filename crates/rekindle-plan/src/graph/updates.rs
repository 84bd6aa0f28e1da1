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
    // How many of the other operations have run when each tensor is made, and when each storage is read, for the last time.
    let mut made = vec![0; graph.tensors.len()];
    let mut read = vec![0; graph.tensors.len()];
    let mut updates: Vec<(usize, OperationId, TensorId)> = Vec::new();
    let mut others: Vec<OperationId> = Vec::with_capacity(operations.len());
    for id in operations {
        let operation = graph.operation(id);
        if let Some(tensor) = operation.updates {
            let inputs = operation.inputs.iter();
            let last = inputs.map(|input| made[input.index()]).max();
            updates.push((last.unwrap_or(0), id, tensor));
            continue;
        }
        others.push(id);
        for input in &operation.inputs {
            read[roots[input.index()].index()] = others.len();
        }
        for output in &operation.outputs {
            made[output.index()] = others.len();
        }
    }
    for (place, _, tensor) in &mut updates {
        *place = read[tensor.index()].max(*place);
    }
    updates.sort_by_key(|(place, ..)| *place);
    let mut settled = Vec::with_capacity(others.len() + updates.len());
    let mut ran = 0;
    for (place, id, _) in updates {
        settled.extend_from_slice(&others[ran..place]);
        settled.push(id);
        ran = place;
    }
    settled.extend_from_slice(&others[ran..]);
    settled
}
