//! Programs: operations in the order in which they run, each as often as it is listed.
//!
//! One pass from the end to the start finds the tensors that are freed at each step. Let W be the set of tensors made
//! up to step k that later steps still need, starting from the outputs at the end:
//! ```text
//! frees(k) = { t in inputs(k) or outputs(k), t not given, t not in W }
//! W before k = (W without outputs(k)) with inputs(k)
//! ```
//! The result of an operation with no output in W is unused; [`Program::without_dead_runs`] removes such runs in the
//! same pass. Cost: O(operations and their tensors).

use std::collections::HashMap;

use super::{Graph, GraphError, OperationId, TensorId};

/// A list of operations of a graph that finds everything it reads and leaves every output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    operations: Vec<OperationId>,
    /// `freed[ends[k + 1]..ends[k]]` is what dies at step k: that of the last step comes first.
    freed: Vec<TensorId>,
    ends: Vec<u32>,
}

impl Program {
    /// Checks a list of operations. Operations whose results are unused may be missing.
    ///
    /// # Errors
    /// The first step that breaks a rule, or an output that is never made.
    ///
    /// # Panics
    /// If an operation names a tensor that the graph does not have: [`Graph::validate`] says so.
    pub fn new(graph: &Graph, operations: Vec<OperationId>) -> Result<Program, GraphError> {
        let mut there: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.given).collect();
        let mut ran = vec![false; graph.operations.len()];
        // A view of a replaced tensor is replaced with it.
        let roots = graph.roots();
        let mut replaced = vec![false; roots.len()];
        for (step, &id) in operations.iter().enumerate() {
            let wrong = |said: String| Err(GraphError(format!("step {step} {said}")));
            let Some(operation) = graph.operations.get(id.index()) else {
                let operations = graph.operations.len();
                return wrong(format!(
                    "runs operation {id}, but there are {operations} operations"
                ));
            };
            let unreadable = |tensor: &&TensorId| {
                !there[tensor.index()] || replaced[roots[tensor.index()].index()]
            };
            if let Some(tensor) = operation.inputs.iter().find(unreadable) {
                let why = match there[tensor.index()] {
                    true => "was updated before",
                    false => "no earlier step makes",
                };
                return wrong(format!(
                    "(operation {id}) reads tensor {tensor}, which {why}"
                ));
            }
            if std::mem::replace(&mut ran[id.index()], true) && !operation.repeatable {
                return wrong(format!(
                    "runs operation {id} again, which is not repeatable"
                ));
            }
            for output in &operation.outputs {
                there[output.index()] = true;
            }
            if let Some(tensor) = operation.updates {
                replaced[tensor.index()] = true;
            }
        }
        match graph.outputs().find(|tensor| !there[tensor.index()]) {
            Some(tensor) => Err(GraphError(format!(
                "no step makes the output tensor {tensor}"
            ))),
            None => Ok(Program::with_frees(graph, &operations, true)),
        }
    }

    /// Every operation once, in recorded order, and every update as soon as it can run: nothing is recomputed, and
    /// everything that the backward pass needs is kept.
    ///
    /// # Errors
    /// The graph's order is invalid; [`Graph::validate`] gives details.
    pub fn recorded(graph: &Graph) -> Result<Program, GraphError> {
        let computing = (0..graph.updates().end as u32).map(OperationId);
        Program::settled(graph, computing.collect())
    }

    /// Like [`new`](Self::new), with every update moved to the first point where it can run: after the last step that reads
    /// the value it replaces, and the last before it that makes its inputs. Operations of the backward pass and recomputes
    /// read the old value; after the update, its gradient is dead. A view of a parameter counts as the parameter: an update
    /// while a view is live would need a second storage.
    ///
    /// # Errors
    /// See [`new`](Self::new), except reads of updated tensors.
    pub(crate) fn settled(
        graph: &Graph,
        operations: Vec<OperationId>,
    ) -> Result<Program, GraphError> {
        if graph.updates().is_empty() {
            return Program::new(graph, operations);
        }
        let roots = graph.roots();
        // The last steps that make each tensor and read each storage, counted from 1.
        let mut made = vec![0; roots.len()];
        let mut read = vec![0; roots.len()];
        let mut places: Vec<(usize, OperationId)> = Vec::with_capacity(operations.len());
        for (step, id) in (1..).zip(operations) {
            let operation = graph.operation(id);
            if operation.updates.is_some() {
                let inputs = operation.inputs.iter();
                let made = inputs.map(|input| made[input.index()]).max();
                places.push((made.unwrap_or(0), id));
                continue;
            }
            places.push((step, id));
            for input in &operation.inputs {
                read[roots[input.index()].index()] = step;
            }
            for output in &operation.outputs {
                made[output.index()] = step;
            }
        }
        places.sort_by_key(|&(place, id)| match graph.operation(id).updates {
            Some(tensor) => (place.max(read[tensor.index()]), true),
            None => (place, false),
        });
        Program::new(graph, places.into_iter().map(|(_, id)| id).collect())
    }

    /// A list of operations with views, each directly before it is read, again where its base was made anew.
    pub(crate) fn with_views(
        graph: &Graph,
        computing: impl Iterator<Item = OperationId>,
    ) -> Vec<OperationId> {
        let roots = graph.roots();
        let all = graph.operation_ids().zip(&graph.operations);
        let views = all.filter(|(_, one)| one.view);
        let viewing = views.flat_map(|(id, view)| view.outputs.iter().map(move |one| (*one, id)));
        let viewing: HashMap<TensorId, OperationId> = viewing.collect();
        // How often a base has been made, and how often it had been when its view was made.
        let mut made = vec![0; roots.len()];
        let mut viewed = HashMap::new();
        let mut list = Vec::new();
        let outputs: Vec<TensorId> = graph.outputs().collect();
        for id in computing.map(Some).chain([None]) {
            let operation = id.map(|id| graph.operation(id));
            let mut views = Vec::new();
            for &(mut tensor) in operation.map_or(&outputs, |one| &one.inputs) {
                let now = made[roots[tensor.index()].index()];
                while let Some(&view) = viewing.get(&tensor)
                    && viewed.insert(view, now) != Some(now)
                {
                    views.push(view);
                    tensor = graph.operation(view).inputs[0];
                }
            }
            views.sort_unstable();
            list.extend(views.into_iter().chain(id));
            for output in operation.iter().flat_map(|one| &one.outputs) {
                made[output.index()] += 1;
            }
        }
        list
    }

    /// The steps in order.
    pub fn operations(&self) -> &[OperationId] {
        &self.operations
    }

    /// The tensors freed after a step: inputs last used there and unused outputs, each once. Outputs of the graph and
    /// given tensors are never freed.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn frees(&self, step: usize) -> &[TensorId] {
        let start = self.ends.get(step + 1).copied().unwrap_or(0);
        &self.freed[start as usize..self.ends[step] as usize]
    }

    /// The program without runs whose outputs are all unused. This changes no value and does not increase the peak.
    #[doc(hidden)]
    #[must_use]
    pub fn without_dead_runs(&self, graph: &Graph) -> Program {
        Program::with_frees(graph, &self.operations, false)
    }

    /// A valid list with what it frees, with or without the runs whose outputs are all unused.
    fn with_frees(graph: &Graph, listed: &[OperationId], with_dead: bool) -> Program {
        let tensors = graph.tensors.iter();
        let mut wanted: Vec<bool> = tensors.map(|one| one.output || one.given).collect();
        let mut operations = Vec::with_capacity(listed.len());
        let mut freed = Vec::new();
        let mut ends = Vec::with_capacity(listed.len());
        for &id in listed.iter().rev() {
            let operation = graph.operation(id);
            if !with_dead && !operation.outputs.iter().any(|t| wanted[t.index()]) {
                continue;
            }
            let start = freed.len();
            for &tensor in operation.inputs.iter().chain(&operation.outputs) {
                if !wanted[tensor.index()] && !freed[start..].contains(&tensor) {
                    freed.push(tensor);
                }
            }
            for output in &operation.outputs {
                wanted[output.index()] = false;
            }
            for input in &operation.inputs {
                wanted[input.index()] = true;
            }
            operations.push(id);
            ends.push(freed.len() as u32);
        }
        operations.reverse();
        ends.reverse();
        Program {
            operations,
            freed,
            ends,
        }
    }
}
