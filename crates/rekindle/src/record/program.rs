//! A program of operations that is ready to run: for each operation, the tensors to free and to return.
//!
//! A tensor is freed at its last use before it is recomputed; there the operation may reuse its storage. A tensor that
//! the step returns is taken as soon as it is made for the last time and nothing reads it any more.
//!
//! The stored data are the program, the tensors that each of its steps frees, and where tensors are returned: about 20
//! bytes per step. burn's description of an operation is built when the operation runs.

use std::collections::HashSet;

use burn::tensor::DispatchTensor;
use burn_ir::OperationIr;
use rekindle_plan::graph::{Graph, Program, TensorId};

use super::{
    RecordError, bridge::Interpreter, host::Move, operations::RecordedOperation,
    recording::Recording,
};

/// The order in which the operations were recorded.
pub(super) fn plain_order(graph: &Graph) -> Result<Program, RecordError> {
    Program::recorded(graph).map_err(|error| RecordError::Capture(error.to_string()))
}

/// A program of a recording.
pub(super) struct Prepared {
    pub(super) program: Program,
    /// The offloaded tensors, in the order of their transfers in the graph.
    pub(super) offloaded: Vec<TensorId>,
    /// Each returned tensor with the step after which it is ready, in the order of steps.
    ready: Vec<(usize, usize)>,
}

/// One step of a program.
#[derive(Clone, Copy)]
pub(super) enum Turn<'a> {
    /// An operation of the recording runs.
    Run(Run<'a>),
    /// A parameter is updated.
    Update(UpdateOf<'a>),
    /// A tensor is moved to the host or back.
    Move(Move<'a>),
}

/// The update of a parameter.
#[derive(Clone, Copy)]
pub(super) struct UpdateOf<'a> {
    /// The index of the parameter.
    pub(super) place: usize,
    gradient: usize,
    recording: &'a Recording,
    freed: &'a [TensorId],
}

/// One run of an operation in a program.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// Its number in the recording.
    pub(super) number: usize,
    /// The operation.
    pub(super) recorded: RecordedOperation<'a>,
    recording: &'a Recording,
    /// Tensors freed by it or after it. The graph has further tensors numbered after the recording's.
    freed: &'a [TensorId],
}

/// The tensors to return after a step.
#[derive(Clone, Copy)]
pub(super) struct Ready<'a> {
    recording: &'a Recording,
    /// Steps and tensors.
    ready: &'a [(usize, usize)],
}

impl Prepared {
    /// Prepares `program`, a program of `recording` with transfers of `offloaded`.
    pub(super) fn new(recording: &Recording, program: Program, offloaded: Vec<TensorId>) -> Self {
        let given: HashSet<usize> = recording.given().collect();
        let mut wanted: HashSet<usize> = recording
            .outputs()
            .filter(|one| !given.contains(one))
            .collect();
        let mut ready = Vec::with_capacity(wanted.len());
        let others = recording.operations.len() + recording.updated().count();
        for (step, operation) in program.operations().iter().enumerate().rev() {
            let mut last_here = |tensor| {
                if wanted.remove(&tensor) {
                    ready.push((step, tensor));
                }
            };
            // In graphs, updates and transfers are numbered after the recording's operations.
            match operation.index() {
                place if place < recording.operations.len() => {
                    recording
                        .operations
                        .get(place)
                        .tensors()
                        .for_each(last_here);
                }
                place => {
                    if let Some((tensor, _)) = moved(place, others, &offloaded) {
                        last_here(tensor);
                    }
                }
            }
        }
        ready.reverse();
        Self {
            program,
            offloaded,
            ready,
        }
    }

    /// Its steps in order, each with the tensors to return after it.
    pub(super) fn turns<'a>(
        &'a self,
        recording: &'a Recording,
    ) -> impl Iterator<Item = (Turn<'a>, Ready<'a>)> {
        let mut later = self.ready.as_slice();
        let updated = recording.updated();
        let updated: Vec<(usize, usize)> = updated
            .filter_map(|(place, parameter)| Some((place, parameter.gradient?)))
            .collect();
        let others = recording.operations.len() + updated.len();
        let operations = self.program.operations().iter().enumerate();
        operations.map(move |(step, operation)| {
            let here = later.iter().take_while(|(at, _)| *at == step).count();
            let (ready, rest) = later.split_at(here);
            later = rest;
            let ready = Ready { recording, ready };
            let (number, freed) = (operation.index(), self.program.frees(step));
            if let Some((tensor, offload)) = moved(number, others, &self.offloaded) {
                let mut freed = freed.iter();
                let one = Move {
                    tensor,
                    offload,
                    // An offload may free the tensor, a fetch its copy.
                    frees: freed.any(|one| offload == (one.index() == tensor)),
                    tensors: &recording.tensors,
                };
                return (Turn::Move(one), ready);
            }
            let turn = match number.checked_sub(recording.operations.len()) {
                None => Turn::Run(Run {
                    number,
                    recorded: recording.operations.get(number),
                    recording,
                    freed,
                }),
                Some(update) => {
                    let (place, gradient) = updated[update];
                    Turn::Update(UpdateOf {
                        place,
                        gradient,
                        recording,
                        freed,
                    })
                }
            };
            (turn, ready)
        })
    }
}

impl UpdateOf<'_> {
    /// Returns the gradient; the interpreter drops it if nothing else reads it.
    pub(super) fn take(self, interpreter: &mut dyn Interpreter) -> DispatchTensor {
        let gradient = interpreter.hand_out(&self.recording.tensors.last_read(self.gradient));
        self.skip(interpreter);
        gradient
    }

    /// Frees the gradient if nothing else reads it, without an update.
    pub(super) fn skip(self, interpreter: &mut dyn Interpreter) {
        if self.freed.iter().any(|one| one.index() == self.gradient) {
            let gradient = self.recording.tensors.last_read(self.gradient);
            interpreter.run(OperationIr::Drop(gradient));
        }
    }
}

impl Ready<'_> {
    /// Takes the tensors out of the interpreter, and returns them with their numbers.
    pub(super) fn hand_out(
        self,
        interpreter: &mut dyn Interpreter,
    ) -> Vec<(usize, DispatchTensor)> {
        let ready = self.ready.iter().map(|&(_, tensor)| {
            let last = self.recording.tensors.last_read(tensor);
            let value = interpreter.hand_out(&last);
            interpreter.run(OperationIr::Drop(last));
            (tensor, value)
        });
        ready.collect()
    }
}

/// The tensor that an operation of a graph transfers, and whether to the host. The graph has `others` operations before
/// the transfers.
fn moved(number: usize, others: usize, offloaded: &[TensorId]) -> Option<(usize, bool)> {
    let place = number.checked_sub(others)?;
    Some((offloaded.get(place / 2)?.index(), place % 2 == 0))
}

impl Run<'_> {
    /// Runs the operation, with changes to its outputs; [`finish`](Self::finish) must follow.
    pub(super) fn run_changed(
        self,
        interpreter: &mut dyn Interpreter,
        mut change: impl FnMut(DispatchTensor) -> Result<DispatchTensor, RecordError>,
    ) -> Result<(), RecordError> {
        interpreter.run(self.operation());
        for output in self.recorded.outputs() {
            let made = self.recording.tensors.last_read(output);
            let (id, value) = (made.id, interpreter.hand_out(&made));
            interpreter.run(OperationIr::Drop(made));
            interpreter.give(id, change(value)?);
        }
        Ok(())
    }

    /// Finishes the operation: frees inputs that it reads twice and outputs that nothing reads.
    pub(super) fn finish(self, interpreter: &mut dyn Interpreter) {
        let tensors = &self.recording.tensors;
        let freed = self.freed.iter().map(|tensor| tensor.index());
        for tensor in freed.filter(|&tensor| tensor < tensors.len()) {
            if !self.recorded.can_free(tensor) {
                interpreter.run(OperationIr::Drop(tensors.last_read(tensor)));
            }
        }
    }

    /// burn's description of the operation. It frees tensors that it reads once and that nothing reads later.
    pub(super) fn operation(self) -> OperationIr {
        self.recorded.filled(|tensor| self.frees(tensor))
    }

    /// The operation, keeping these inputs that it would free.
    pub(super) fn keeping(self, inputs: &[(usize, usize)]) -> OperationIr {
        let kept = |tensor| inputs.iter().any(|&(_, input)| input == tensor);
        self.recorded
            .filled(|tensor| self.frees(tensor) && !kept(tensor))
    }

    /// Whether the operation itself frees a tensor.
    pub(super) fn takes(self, tensor: usize) -> bool {
        self.frees(tensor) && self.recorded.can_free(tensor)
    }

    fn frees(self, tensor: usize) -> bool {
        self.freed.iter().any(|one| one.index() == tensor)
    }
}
