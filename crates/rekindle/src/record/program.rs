//! A program of operations, ready to run: each operation with the fate of its tensors.
//!
//! A tensor is freed at its last use before it is made again: there the operation may take its storage over. A tensor
//! that the step hands out is taken as soon as it is made for the last time and nothing reads it any more.

use std::collections::{HashMap, HashSet};

use burn::tensor::{DispatchTensor, Slice};
use burn_ir::{IrVisitorMut, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use rekindle_plan::graph::Program;

use super::{bridge::Interpreter, recording::Recording};

/// One operation of a program.
pub(super) struct Prepared {
    /// Its number in the recording.
    pub(super) number: usize,
    /// It, with the fate of its tensors.
    pub(super) operation: OperationIr,
    /// Freed after it: inputs that it reads twice, outputs that nobody reads.
    drops: Vec<OperationIr>,
    /// Handed out after it.
    ready: Vec<TensorIr>,
}

/// The operations of `program`, which is one of `recording`.
pub(super) fn prepare(recording: &Recording, program: &Program) -> Vec<Prepared> {
    let order: Vec<usize> = program
        .operations()
        .iter()
        .map(|one| one.0 as usize)
        .collect();
    let mut ready = last_places(recording, &order);
    let steps = order.into_iter().enumerate();
    steps
        .map(|(step, number)| {
            let mut operation = recording.operations[number].operation.clone();
            // The graph has tensors of its own behind the recording's.
            let freed = program.frees(step).iter().map(|tensor| u64::from(tensor.0));
            let freed = freed.filter(|tensor| (*tensor as usize) < recording.tensors.len());
            let freed: HashSet<u64> = freed.collect();
            let mut uses: HashMap<u64, usize> = HashMap::new();
            for input in operation.inputs() {
                *uses.entry(input.id.value()).or_default() += 1;
            }
            let taken: HashSet<u64> = freed
                .iter()
                .copied()
                .filter(|tensor| uses.get(tensor) == Some(&1))
                .collect();
            let outputs: HashSet<u64> = operation
                .outputs()
                .map(|output| output.id.value())
                .collect();
            operation.visit_mut(&mut Fates {
                taken: &taken,
                outputs: &outputs,
            });
            let drops = freed.difference(&taken).map(|&tensor| {
                let mut tensor = recording.tensors[tensor as usize].clone();
                tensor.status = TensorStatus::ReadWrite;
                OperationIr::Drop(tensor)
            });
            let handed_out = ready
                .remove(&step)
                .unwrap_or_default()
                .into_iter()
                .map(|tensor| {
                    let mut tensor = recording.tensors[tensor].clone();
                    tensor.status = TensorStatus::ReadWrite;
                    tensor
                });
            Prepared {
                number,
                drops: drops.collect(),
                ready: handed_out.collect(),
                operation,
            }
        })
        .collect()
}

/// After which step each made output is made and read no more.
fn last_places(recording: &Recording, order: &[usize]) -> HashMap<usize, Vec<usize>> {
    let given: HashSet<usize> = recording.given().collect();
    let mut wanted: HashSet<usize> = recording
        .outputs()
        .filter(|one| !given.contains(one))
        .collect();
    let mut places: HashMap<usize, Vec<usize>> = HashMap::new();
    for (step, &number) in order.iter().enumerate().rev() {
        for tensor in recording.operations[number].operation.nodes() {
            if wanted.remove(&(tensor.id.value() as usize)) {
                places
                    .entry(step)
                    .or_default()
                    .push(tensor.id.value() as usize);
            }
        }
    }
    places
}

impl Prepared {
    /// Runs it and frees what it was the last to read. `ready` is told what the step hands out.
    pub(super) fn run(
        &self,
        interpreter: &mut dyn Interpreter,
        ready: &mut dyn FnMut(usize, DispatchTensor),
    ) {
        interpreter.run(self.operation.clone());
        self.finish(interpreter, ready);
    }

    /// What follows after the operation itself.
    pub(super) fn finish(
        &self,
        interpreter: &mut dyn Interpreter,
        ready: &mut dyn FnMut(usize, DispatchTensor),
    ) {
        for drop in &self.drops {
            interpreter.run(drop.clone());
        }
        for tensor in &self.ready {
            ready(tensor.id.value() as usize, interpreter.hand_out(tensor));
        }
    }

    /// The operation, with all its inputs kept.
    pub(super) fn keeping_inputs(&self) -> OperationIr {
        let outputs = self
            .operation
            .outputs()
            .map(|output| output.id.value())
            .collect();
        let mut operation = self.operation.clone();
        operation.visit_mut(&mut Fates {
            taken: &HashSet::new(),
            outputs: &outputs,
        });
        operation
    }
}

/// Says of each tensor of an operation what becomes of it.
struct Fates<'a> {
    taken: &'a HashSet<u64>,
    outputs: &'a HashSet<u64>,
}

impl IrVisitorMut for Fates<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let id = tensor.id.value();
        tensor.status = if self.outputs.contains(&id) {
            TensorStatus::NotInit
        } else if self.taken.contains(&id) {
            TensorStatus::ReadWrite
        } else {
            TensorStatus::ReadOnly
        };
    }

    fn visit_scalar_mut(&mut self, _scalar: &mut ScalarIr) {}

    fn visit_range_mut(&mut self, _range: &mut Slice) {}
}

/// A key under which equal operations on equal tensors are found again, whatever their tensors' numbers. Inputs that
/// are views of others count as such: a product with a transposed matrix is another kernel.
pub(super) fn keys(recording: &Recording) -> Vec<u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};

    struct Places(HashMap<u64, u64>);
    impl IrVisitorMut for Places {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            let next = self.0.len() as u64;
            let place = *self.0.entry(tensor.id.value()).or_insert(next);
            tensor.id = TensorId::new(place);
        }
        fn visit_scalar_mut(&mut self, _scalar: &mut ScalarIr) {}
        fn visit_range_mut(&mut self, _range: &mut Slice) {}
    }

    // How each tensor lies in memory: 0 as it was made, else by which views it came to be.
    let mut layouts: Vec<u64> = vec![0; recording.tensors.len()];
    let operations = recording.operations.iter().map(|recorded| {
        let mut operation = recorded.operation.clone();
        operation.visit_mut(&mut Places(HashMap::new()));
        let mut hasher = DefaultHasher::new();
        operation.hash(&mut hasher);
        for input in recorded.operation.inputs() {
            layouts[input.id.value() as usize].hash(&mut hasher);
        }
        let key = hasher.finish();
        if super::operation::may_be_view(&super::operation::name_of(&recorded.operation)) {
            for output in recorded.operation.outputs() {
                layouts[output.id.value() as usize] = key;
            }
        }
        key
    });
    operations.collect()
}
