//! One training step as a list of operations with shapes: what the recording device took down, brought into a form of
//! its own.
//!
//! Tensors are numbered from 0: the module's, the batch's, constants, then outputs in the order in which they are made.
//! So two recordings of one step are equal, and their hashes too. Operations that nothing needs are left out, but for
//! those that draw random numbers: later draws depend on them.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use burn::{
    module::ParamId,
    tensor::{DType, Shape, Slice, TensorData},
};
use burn_ir::{IrVisitorMut, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus};

use super::{bridge::Taken, operation::draws};

/// A recorded step.
#[derive(Debug, Clone)]
pub(crate) struct Recording {
    /// In recorded order; tensors by their number, as yet without a status.
    pub(crate) operations: Vec<Recorded>,
    /// All tensors, by number.
    pub(crate) tensors: Vec<TensorIr>,
    /// What the module holds.
    pub(crate) parameters: Vec<Parameter>,
    /// The batch's tensors.
    pub(crate) inputs: Vec<usize>,
    /// Numbers of the host.
    pub(crate) constants: Vec<(usize, TensorData)>,
    /// The loss.
    pub(crate) loss: usize,
    /// What the step returns besides.
    pub(crate) auxiliary: Vec<usize>,
    /// Gradients of the batch's float tensors; `None` where there is none.
    pub(crate) input_gradients: Vec<Option<usize>>,
    /// New values of running statistics.
    pub(crate) statistics: Vec<(ParamId, usize)>,
    /// Equal for recordings of equal steps.
    pub(crate) hash: u64,
}

/// One operation.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    /// What runs.
    pub(crate) operation: OperationIr,
    /// The marked stage that it belongs to, in the forward pass of a marked model.
    pub(crate) stage: Option<u32>,
    /// Recorded after the loss.
    pub(crate) backward: bool,
}

/// A tensor of the module.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    /// burn's identity.
    pub(crate) id: ParamId,
    /// Where the module has it: `layers.1.weight`.
    pub(crate) path: String,
    /// Its number.
    pub(crate) tensor: usize,
    /// Its gradient, if it trains and the loss depends on it.
    pub(crate) gradient: Option<usize>,
    /// Whether a gradient is wanted.
    pub(crate) trains: bool,
}

impl Recording {
    /// Brings what was recorded into its own form.
    pub(super) fn new<A>(taken: &Taken<A>) -> Self {
        let given: HashSet<TensorId> = taken
            .parameters
            .iter()
            .map(|parameter| parameter.tensor)
            .chain(taken.inputs.iter().copied())
            .chain(taken.constants.iter().map(|(id, _)| *id))
            .collect();
        let gradients = taken.parameters.iter().filter_map(|one| one.gradient);
        let outputs = gradients
            .chain(taken.auxiliary_tensors.iter().copied())
            .chain(taken.input_gradients.iter().flatten().copied())
            .chain(taken.statistics.iter().map(|(_, id)| *id))
            .chain([taken.loss]);
        let needed = needed(
            &taken.operations,
            outputs.collect(),
            &given,
            taken.start_mark,
        );

        let mut numbers = Numbers::default();
        for parameter in &taken.parameters {
            numbers.add(parameter.tensor, parameter.shape.clone(), parameter.dtype);
        }
        let mut inputs = HashMap::new();
        for operation in &taken.operations {
            for tensor in operation.nodes() {
                inputs.entry(tensor.id).or_insert_with(|| tensor.clone());
            }
        }
        for id in &taken.inputs {
            if let Some(tensor) = inputs.get(id) {
                numbers.add(*id, tensor.shape.clone(), tensor.dtype);
            }
        }
        for (id, data) in &taken.constants {
            numbers.add(*id, data.shape().clone(), data.dtype());
        }
        let operations = places(taken, &needed)
            .map(|(place, stage, backward)| {
                let mut operation = taken.operations[place].clone();
                operation.visit_mut(&mut numbers);
                Recorded {
                    operation,
                    stage,
                    backward,
                }
            })
            .collect();
        let number = |id: TensorId| numbers.known[&id];
        let mut recording = Self {
            operations,
            parameters: taken
                .parameters
                .iter()
                .map(|one| Parameter {
                    id: one.id,
                    path: one.path.clone(),
                    tensor: number(one.tensor),
                    gradient: one.gradient.map(number),
                    trains: one.trains,
                })
                .collect(),
            inputs: taken.inputs.iter().copied().map(number).collect(),
            constants: taken
                .constants
                .iter()
                .filter(|(id, _)| needed.tensors.contains(id))
                .map(|(id, data)| (number(*id), data.clone()))
                .collect(),
            loss: number(taken.loss),
            auxiliary: taken
                .auxiliary_tensors
                .iter()
                .copied()
                .map(number)
                .collect(),
            input_gradients: taken
                .input_gradients
                .iter()
                .map(|gradient| gradient.map(number))
                .collect(),
            statistics: taken
                .statistics
                .iter()
                .map(|(id, tensor)| (*id, number(*tensor)))
                .collect(),
            tensors: numbers.tensors,
            hash: 0,
        };
        recording.hash = recording.hashed();
        recording
    }

    /// Tensors that are there before the first operation.
    pub(crate) fn given(&self) -> impl Iterator<Item = usize> + '_ {
        let parameters = self.parameters.iter().map(|parameter| parameter.tensor);
        let constants = self.constants.iter().map(|(tensor, _)| *tensor);
        parameters
            .chain(self.inputs.iter().copied())
            .chain(constants)
    }

    /// Tensors that must be there at the end.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = usize> + '_ {
        let gradients = self.parameters.iter().filter_map(|one| one.gradient);
        gradients
            .chain(self.auxiliary.iter().copied())
            .chain(self.input_gradients.iter().flatten().copied())
            .chain(self.statistics.iter().map(|(_, tensor)| *tensor))
            .chain([self.loss])
    }

    /// Bytes of a tensor's numbers.
    pub(crate) fn value_bytes(&self, tensor: usize) -> u64 {
        let tensor = &self.tensors[tensor];
        (tensor.shape.num_elements() * tensor.dtype.size()) as u64
    }

    fn hashed(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for recorded in &self.operations {
            recorded.operation.hash(&mut hasher);
        }
        for (tensor, data) in &self.constants {
            tensor.hash(&mut hasher);
            data.as_bytes().hash(&mut hasher);
        }
        let outputs: Vec<usize> = self.outputs().collect();
        outputs.hash(&mut hasher);
        hasher.finish()
    }
}

/// Which operations and tensors the outputs need.
struct Needed {
    operations: Vec<bool>,
    tensors: HashSet<TensorId>,
}

fn needed(
    operations: &[OperationIr],
    outputs: HashSet<TensorId>,
    given: &HashSet<TensorId>,
    start_mark: TensorId,
) -> Needed {
    let mut tensors = outputs;
    // Draws before it made parameters.
    let starts = |operation: &OperationIr| operation.outputs().any(|one| one.id == start_mark);
    let start = operations.iter().position(starts).unwrap_or_default();
    let mut keep = vec![false; operations.len()];
    for (place, operation) in operations.iter().enumerate().rev() {
        let makes_given = operation.outputs().any(|tensor| given.contains(&tensor.id));
        if makes_given || matches!(operation, OperationIr::Init(_) | OperationIr::Drop(_)) {
            continue;
        }
        let wanted = operation
            .outputs()
            .any(|tensor| tensors.contains(&tensor.id));
        if wanted || (place > start && draws(operation)) {
            keep[place] = true;
            tensors.extend(operation.inputs().map(|tensor| tensor.id));
        }
    }
    Needed {
        operations: keep,
        tensors,
    }
}

/// The needed operations' places, with the stage and the part of the step that each belongs to.
fn places<'a, A>(
    taken: &'a Taken<A>,
    needed: &'a Needed,
) -> impl Iterator<Item = (usize, Option<u32>, bool)> + 'a {
    let marks: HashMap<TensorId, usize> = taken.marks.iter().copied().zip(0..).collect();
    let (mut stage, mut backward) = (None, false);
    taken
        .operations
        .iter()
        .enumerate()
        .filter_map(move |(place, operation)| {
            for tensor in operation.outputs() {
                if let Some(&mark) = marks.get(&tensor.id) {
                    // A mark stands before each stage, and one after the last.
                    stage = (mark + 1 < marks.len()).then_some(mark as u32);
                }
                if tensor.id == taken.backward_mark {
                    (stage, backward) = (None, true);
                }
            }
            needed.operations[place].then_some((place, stage, backward))
        })
}

/// Numbers tensors in order of appearance.
#[derive(Default)]
struct Numbers {
    known: HashMap<TensorId, usize>,
    tensors: Vec<TensorIr>,
}

impl Numbers {
    fn add(&mut self, id: TensorId, shape: Shape, dtype: DType) -> usize {
        let next = self.tensors.len();
        let number = *self.known.entry(id).or_insert(next);
        if number == next {
            let id = TensorId::new(number as u64);
            self.tensors.push(TensorIr::uninit(id, shape, dtype));
        }
        number
    }
}

impl IrVisitorMut for Numbers {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let number = self.add(tensor.id, tensor.shape.clone(), tensor.dtype);
        tensor.id = TensorId::new(number as u64);
        tensor.status = TensorStatus::NotInit;
    }

    fn visit_scalar_mut(&mut self, _scalar: &mut ScalarIr) {}

    fn visit_range_mut(&mut self, _range: &mut Slice) {}
}
