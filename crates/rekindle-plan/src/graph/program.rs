//! Programs: operations in the order in which they run, each as often as it is listed.
//!
//! One pass from the end to the start finds what dies at each step. With W the set of tensors that the steps after k
//! still want from what was made up to k, starting from the outputs at the end:
//! ```text
//! frees(k) = { t in inputs(k) or outputs(k), t not given, t not in W }
//! W before k = (W without outputs(k)) with inputs(k)
//! ```
//! An operation none of whose outputs is in W runs for nothing; [`Program::without_dead_runs`] leaves such runs out
//! in the same pass. Cost: O(operations and their tensors).

use serde::Serialize;

use super::updates::{Replaced, settled};
use super::{Graph, OperationId, TensorId};

/// A list of operations of a graph that finds everything it reads and leaves every output.
///
/// serde writes the list; reading one back needs the graph, so goes through [`Program::new`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Program {
    operations: Vec<OperationId>,
    /// `freed[ends[k - 1]..ends[k]]` is what dies at step k.
    #[serde(skip)]
    freed: Vec<TensorId>,
    #[serde(skip)]
    ends: Vec<usize>,
}

/// Why a list of operations is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A number that is no operation's.
    #[error("step {step} runs operation {operation}, but there are {operations} operations")]
    UnknownOperation {
        /// The place in the list, from 0.
        step: usize,
        /// The number.
        operation: OperationId,
        /// How many operations there are.
        operations: usize,
    },
    /// A number that is no tensor's.
    #[error("operation {operation} names tensor {tensor}, which the graph does not have")]
    UnknownTensor {
        /// The operation.
        operation: OperationId,
        /// The number.
        tensor: TensorId,
    },
    /// It reads a tensor that is not there.
    #[error(
        "step {step} (operation {operation}) reads tensor {tensor}, which no earlier step makes"
    )]
    InputMissing {
        /// The place in the list, from 0.
        step: usize,
        /// The operation.
        operation: OperationId,
        /// The tensor.
        tensor: TensorId,
    },
    /// It runs an operation again that would not make the same outputs.
    #[error("step {step} runs operation {operation} again, which is not repeatable")]
    Repeated {
        /// The place in the list, from 0.
        step: usize,
        /// The operation.
        operation: OperationId,
    },
    /// It reads a tensor whose value was replaced.
    #[error("step {step} (operation {operation}) reads tensor {tensor}, which was updated before")]
    ReadAfterUpdate {
        /// The place in the list, from 0.
        step: usize,
        /// The operation.
        operation: OperationId,
        /// The tensor.
        tensor: TensorId,
    },
    /// An output is never made.
    #[error("no step makes the output tensor {tensor}")]
    OutputMissing {
        /// The tensor.
        tensor: TensorId,
    },
}

impl Program {
    /// Checks a list of operations. Operations that nothing needs may be missing.
    ///
    /// # Errors
    /// The first step that breaks a rule, or an output that is never made.
    pub fn new(graph: &Graph, operations: Vec<OperationId>) -> Result<Program, ProgramError> {
        let mut there: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.given).collect();
        let mut ran = vec![false; graph.operations.len()];
        let mut replaced = Replaced::new(graph);
        for (step, &id) in operations.iter().enumerate() {
            let operation =
                graph
                    .operations
                    .get(id.index())
                    .ok_or(ProgramError::UnknownOperation {
                        step,
                        operation: id,
                        operations: graph.operations.len(),
                    })?;
            let mut named = operation.inputs.iter().chain(&operation.outputs);
            if let Some(&tensor) = named.find(|t| t.index() >= there.len()) {
                return Err(ProgramError::UnknownTensor {
                    operation: id,
                    tensor,
                });
            }
            if let Some(&tensor) = operation.inputs.iter().find(|t| !there[t.index()]) {
                return Err(ProgramError::InputMissing {
                    step,
                    operation: id,
                    tensor,
                });
            }
            if let Some(tensor) = replaced.read(operation) {
                return Err(ProgramError::ReadAfterUpdate {
                    step,
                    operation: id,
                    tensor,
                });
            }
            if std::mem::replace(&mut ran[id.index()], true) && !operation.repeatable {
                return Err(ProgramError::Repeated {
                    step,
                    operation: id,
                });
            }
            for output in &operation.outputs {
                there[output.index()] = true;
            }
        }
        if let Some(tensor) = graph.outputs().find(|t| !there[t.index()]) {
            return Err(ProgramError::OutputMissing { tensor });
        }
        Ok(Program::with_frees(graph, operations))
    }

    /// Every operation once, in recorded order, and every update as soon as it can run: nothing is recomputed, and all
    /// that the backward needs is kept.
    ///
    /// # Errors
    /// The graph's order is wrong; [`Graph::validate`] says more.
    pub fn recorded(graph: &Graph) -> Result<Program, ProgramError> {
        Program::settled(graph, graph.computing().collect())
    }

    /// As [`new`](Self::new), with every update moved to where it can run first.
    ///
    /// # Errors
    /// As [`new`](Self::new), reads of updated tensors apart.
    pub(crate) fn settled(
        graph: &Graph,
        operations: Vec<OperationId>,
    ) -> Result<Program, ProgramError> {
        Program::new(graph, settled(graph, operations))
    }

    /// The steps in order.
    pub fn operations(&self) -> &[OperationId] {
        &self.operations
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// What dies when a step has run: inputs last used there and outputs that nobody uses, each once. Outputs of the
    /// graph and given tensors are never among them.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn frees(&self, step: usize) -> &[TensorId] {
        let start = if step == 0 { 0 } else { self.ends[step - 1] };
        &self.freed[start..self.ends[step]]
    }

    /// The same program without runs none of whose outputs is used: they change no value and no peak upwards.
    #[must_use]
    pub fn without_dead_runs(&self, graph: &Graph) -> Program {
        let mut wanted: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.output).collect();
        let mut kept = Vec::with_capacity(self.operations.len());
        for &id in self.operations.iter().rev() {
            let operation = graph.operation(id);
            if !operation.outputs.iter().any(|t| wanted[t.index()]) {
                continue;
            }
            for output in &operation.outputs {
                wanted[output.index()] = false;
            }
            for input in &operation.inputs {
                wanted[input.index()] = true;
            }
            kept.push(id);
        }
        kept.reverse();
        Program::with_frees(graph, kept)
    }

    /// The deaths of a list that breaks no rule.
    fn with_frees(graph: &Graph, operations: Vec<OperationId>) -> Program {
        let mut wanted: Vec<bool> = graph
            .tensors
            .iter()
            .map(|tensor| tensor.output || tensor.given)
            .collect();
        let mut freed = Vec::new();
        let mut ends = Vec::with_capacity(operations.len());
        for &id in operations.iter().rev() {
            let operation = graph.operation(id);
            let start = freed.len();
            for &tensor in operation.inputs.iter().chain(&operation.outputs).rev() {
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
            ends.push(freed.len());
        }
        // Both lists were filled from the last step on.
        freed.reverse();
        let total = freed.len();
        let mut starts: Vec<usize> = ends.iter().map(|end| total - end).collect();
        starts.reverse();
        let mut ends: Vec<usize> = starts.into_iter().skip(1).collect();
        if !operations.is_empty() {
            ends.push(total);
        }
        Program {
            operations,
            freed,
            ends,
        }
    }
}
