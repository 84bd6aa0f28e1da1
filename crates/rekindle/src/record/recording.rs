//! One training step as a list of operations with shapes, converted from what the recording device recorded.
//!
//! Tensors are numbered from 0: the module's, the batch's, constants, then outputs in the order in which they are made.
//! Operations whose results are unused are left out, except those that draw random numbers, because later draws depend
//! on them.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
};

use burn::tensor::TensorData;
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use rekindle_plan::{Bytes, graph::Graph};
use rustc_hash::{FxHashMap, FxHashSet};
use siphasher::sip::SipHasher13;

use super::{
    RecordError,
    operation::{draws, exchanges_dimensions, hash_with},
    operations::{Operations, Packing},
    places::{Parameter, Place},
    tensors::{Numbering, Tensors},
    update::Update,
};
use crate::{Dtype, meter::Meter, quiet};

/// A recorded step.
#[derive(Debug, Clone)]
pub(crate) struct Recording {
    /// In recorded order.
    pub(crate) operations: Operations,
    /// All tensors, by number.
    pub(crate) tensors: Tensors,
    /// The index in `parameters` of the tensor at each place of the module.
    places: Box<[u32]>,
    /// The module's tensors, in the order of their first places.
    pub(crate) parameters: Vec<Parameter>,
    /// The batch's tensors.
    pub(crate) inputs: Vec<usize>,
    /// Host data.
    pub(crate) constants: Vec<(usize, TensorData)>,
    /// The loss.
    pub(crate) loss: usize,
    /// The tensors of the auxiliary output.
    pub(crate) auxiliary: Vec<usize>,
    /// New values of running statistics, by place.
    pub(crate) statistics: Vec<(usize, usize)>,
    /// When parameters are updated.
    pub(crate) update: Update,
}

/// The result of running a step on the recording device, with burn's tensor ids, which count through the process.
pub(super) struct Captured<A> {
    /// Forward, loss and burn's backward, in burn's order.
    pub(super) operations: Vec<OperationIr>,
    /// Tensors created from host data.
    pub(super) constants: Vec<(TensorId, TensorData)>,
    /// The module's places.
    pub(super) places: Vec<Place>,
    /// All tensors of the module, including running statistics, in the order of their first places.
    pub(super) parameters: Vec<Parameter<TensorId>>,
    /// The batch's tensors.
    pub(super) inputs: Vec<TensorIr>,
    /// The loss.
    pub(super) loss: TensorId,
    /// The auxiliary output, on the recording device, and its tensors.
    pub(super) auxiliary: A,
    pub(super) auxiliary_tensors: Vec<TensorId>,
    /// New values of running statistics, by place.
    pub(super) statistics: Vec<(usize, TensorId)>,
    /// Tensors created by the marks of stages: the position of their operation is the position of the mark.
    pub(super) marks: Vec<TensorId>,
    /// Number of operations that made the model and the batch, before the step.
    pub(super) start: usize,
    /// Created after the loss, before its backward pass.
    pub(super) backward_mark: TensorId,
    /// Nodes that burn numbered in the step: one for each operation, and one for each `detach`.
    pub(super) nodes: u64,
}

impl<A> Captured<A> {
    /// A hash of all that is computed, from values of the module and the batch that may differ, and the auxiliary output. It is
    /// the same for the same step again, unless another thread makes nodes of burn's graph meanwhile.
    pub(super) fn hashed(self) -> (u64, A) {
        struct Numbers(FxHashMap<TensorId, u64>);
        impl IrVisitorMut for Numbers {
            fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
                let next = self.0.len() as u64;
                tensor.id = TensorId::new(*self.0.entry(tensor.id).or_insert(next));
                tensor.status = TensorStatus::NotInit;
            }
        }
        let parameters = self.parameters.iter().map(|parameter| parameter.tensor);
        let given = parameters.chain(self.inputs.iter().map(|input| input.id));
        let mut numbers = Numbers(given.zip(0..).collect());
        let mut hasher = SipHasher13::new();
        for mut operation in self.operations {
            let given = operation
                .outputs()
                .any(|made| numbers.0.contains_key(&made.id));
            if !given && !matches!(operation, OperationIr::Init(_) | OperationIr::Drop(_)) {
                operation.visit_mut(&mut numbers);
                hash_with(&operation, &mut hasher);
            }
        }
        let number = |id: &TensorId| numbers.0.get(id).copied();
        for (id, data) in &self.constants {
            (number(id), data.as_bytes()).hash(&mut hasher);
        }
        let auxiliary = self.auxiliary_tensors.iter().map(number);
        let statistics = self.statistics.iter();
        let statistics = statistics.map(|(place, id)| (*place, number(id)));
        let auxiliary: Vec<_> = auxiliary.collect();
        let statistics: Vec<_> = statistics.collect();
        (number(&self.loss), auxiliary, statistics, self.nodes).hash(&mut hasher);
        (hasher.finish(), self.auxiliary)
    }
}

impl Recording {
    /// Converts a recorded step, drops burn's own data, and returns the auxiliary output.
    pub(super) fn new<A>(taken: Captured<A>, update: Update) -> (Self, A) {
        let given = taken.parameters.iter().map(|parameter| parameter.tensor);
        let given = given
            .chain(taken.inputs.iter().map(|input| input.id))
            .chain(taken.constants.iter().map(|(id, _)| *id));
        let gradients = taken.parameters.iter().filter_map(|one| one.gradient);
        let outputs = gradients
            .chain(taken.auxiliary_tensors.iter().copied())
            .chain(taken.statistics.iter().map(|(_, id)| *id))
            .chain([taken.loss]);
        let (wanted, read) = needed(
            &taken.operations,
            outputs.collect(),
            &given.collect(),
            taken.start,
        );

        let mut numbering = Numbering::default();
        for parameter in &taken.parameters {
            let Place { shape, dtype, .. } = &taken.places[parameter.place];
            numbering.add(parameter.tensor, shape, *dtype);
        }
        for input in &taken.inputs {
            numbering.add(input.id, &input.shape, input.dtype);
        }
        let constants = taken.constants.into_iter();
        let constants = constants.filter(|(id, _)| read.contains(id));
        let constants: Vec<(TensorId, TensorData)> = constants.collect();
        for (id, data) in &constants {
            numbering.add(*id, data.shape(), data.dtype());
        }
        let mut packing = Packing::new(wanted.iter().filter(|one| **one).count());
        let mut parts = Parts::new(&taken.marks, taken.backward_mark);
        // burn's descriptions are freed on the way: together with the packed ones they would be the peak of a comparison.
        let mut operations = taken.operations;
        operations.reverse();
        for wanted in wanted {
            let Some(operation) = operations.pop() else {
                break;
            };
            parts.pass(&operation);
            if wanted {
                packing.add(operation, parts.stage, parts.backward, &mut numbering);
            }
            if operations.len() < operations.capacity() / 2 {
                operations.shrink_to_fit();
            }
        }
        let number = |id: TensorId| numbering.number(id);
        let parameters = taken.parameters.into_iter().map(|one| Parameter {
            id: one.id,
            place: one.place,
            path: one.path,
            tensor: number(one.tensor),
            gradient: one.gradient.map(number),
            trains: one.trains,
        });
        let mut parameters: Vec<Parameter> = parameters.collect();
        let places = taken.places.iter().map(|of| {
            let after = parameters.partition_point(|one| one.place <= of.first);
            after as u32 - 1
        });
        let places = places.collect();
        parameters.shrink_to_fit();
        let constants = constants.into_iter();
        let inputs = taken.inputs.iter().map(|input| number(input.id));
        let auxiliary = taken.auxiliary_tensors.into_iter().map(number);
        let statistics = taken.statistics.into_iter();
        let mut recording = Self {
            operations: packing.finish(),
            places,
            parameters,
            inputs: inputs.collect(),
            constants: constants.map(|(id, data)| (number(id), data)).collect(),
            loss: number(taken.loss),
            auxiliary: auxiliary.collect(),
            statistics: statistics
                .map(|(place, tensor)| (place, number(tensor)))
                .collect(),
            tensors: numbering.finish(),
            update,
        };
        recording.place_gradients();
        (recording, taken.auxiliary)
    }

    /// All that is computed, without the values of the module and the batch.
    fn computed(&self) -> impl Hash + PartialEq + '_ {
        let constants = self.constants.iter();
        let constants = constants.map(|(tensor, data)| (*tensor, data.as_bytes()));
        let gradients = self.parameters.iter().map(|one| (one.place, one.gradient));
        (
            &self.operations,
            constants.collect::<Vec<_>>(),
            gradients.collect::<Vec<_>>(),
            (self.loss, &self.auxiliary, &self.statistics),
        )
    }

    /// Whether both compute the same, from values of the module and the batch that may differ.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.computed() == other.computed()
    }

    /// Equal for equal steps, of other processes too.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = SipHasher13::new();
        self.computed().hash(&mut hasher);
        hasher.finish()
    }

    /// Assigns the operation that makes a parameter's gradient to the first stage that reads the parameter.
    fn place_gradients(&mut self) {
        let mut read_in: Vec<Option<u32>> = vec![None; self.parameters.len()];
        let places = self.parameters.iter().zip(0..);
        let places: FxHashMap<usize, usize> =
            places.map(|(one, place)| (one.tensor, place)).collect();
        for operation in self.operations.iter().filter(|one| !one.backward) {
            let parameters = operation.inputs().filter_map(|input| places.get(&input));
            for &parameter in parameters {
                // In recorded order: the first is the lowest.
                read_in[parameter] = read_in[parameter].or(operation.stage);
            }
        }
        let gradients = self.parameters.iter().zip(read_in);
        let gradients: FxHashMap<usize, u32> = gradients
            .filter_map(|(one, stage)| Some((one.gradient?, stage?)))
            .collect();
        for number in 0..self.operations.len() {
            let operation = self.operations.get(number);
            let mut outputs = operation.outputs().filter(|_| operation.backward);
            let stage = outputs.find_map(|output| gradients.get(&output).copied());
            drop(outputs);
            if let Some(stage) = stage {
                self.operations.set_stage(number, stage);
            }
        }
    }

    /// Fails if no gradient depends on the loss: burn's `backward` would panic.
    pub(super) fn check_trains(&self) -> Result<(), RecordError> {
        if self.parameters.iter().any(|one| one.gradient.is_some()) {
            return Ok(());
        }
        let mut read = FxHashSet::from_iter([self.loss]);
        for number in (0..self.operations.len()).rev() {
            let operation = self.operations.get(number);
            if operation.outputs().any(|output| read.contains(&output)) {
                read.extend(operation.inputs());
            }
        }
        let mut trained = self.parameters.iter().filter(|one| one.trains).peekable();
        let why = if trained.peek().is_none() {
            "no parameter of the model requires a gradient. Is it frozen, or from `valid()`?"
        } else if trained.any(|one| read.contains(&one.tensor)) {
            "it is cut off from the parameters, by `detach` for example"
        } else if self.inputs.iter().any(|one| read.contains(one)) {
            "it is computed from the batch without a parameter that trains"
        } else {
            "it is a constant"
        };
        Err(RecordError::Unrecordable(format!(
            "the loss trains nothing: {why}"
        )))
    }

    /// Tensors that exist before the first operation.
    pub(crate) fn given(&self) -> impl Iterator<Item = usize> + '_ {
        let parameters = self.parameters.iter().map(|parameter| parameter.tensor);
        let constants = self.constants.iter().map(|(tensor, _)| *tensor);
        parameters
            .chain(self.inputs.iter().copied())
            .chain(constants)
    }

    /// The parameters that the step itself updates, with their indices, in the order of their updates in graphs.
    pub(crate) fn updated(&self) -> impl Iterator<Item = (usize, &Parameter)> {
        let updates = self.update == Update::InBackward;
        let parameters = self.parameters.iter().enumerate();
        parameters.filter(move |(_, one)| updates && one.gradient.is_some())
    }

    /// The numbers of the tensors that the step itself updates, by place.
    pub(super) fn updated_places(&self) -> HashMap<usize, usize> {
        let updated: FxHashSet<usize> = self.updated().map(|(_, one)| one.tensor).collect();
        let places = self.places.iter().enumerate();
        let tensors = places.map(|(place, &of)| (place, self.parameters[of as usize].tensor));
        tensors
            .filter(|(_, tensor)| updated.contains(tensor))
            .collect()
    }

    /// Whether a module with these places has the tensors of the recorded one.
    pub(super) fn is_of(&self, places: &[Place]) -> bool {
        let alike = |(of, &own): (&Place, &u32)| {
            let own = &self.parameters[own as usize];
            let shape = self.tensors.shape(own.tensor);
            (of.id, of.first, of.trains) == (own.id, own.place, own.trains)
                && of.shape == *shape
                && of.dtype == self.tensors.dtype(own.tensor)
        };
        self.places.len() == places.len() && places.iter().zip(&self.places).all(alike)
    }

    /// Whether programs of `other` are programs of this recording, too: the same operations, on tensors of other shapes.
    pub(super) fn takes_programs_of(&self, other: &Self) -> bool {
        let ends = |one: &Self| {
            let parameters = one.parameters.iter();
            let parameters = parameters.map(|one| (one.tensor, one.gradient)).collect();
            let outputs = one.outputs().collect();
            (parameters, one.given().collect(), outputs, one.update)
        };
        let own: (Vec<_>, Vec<_>, Vec<_>, _) = ends(self);
        self.tensors.len() == other.tensors.len()
            && self.operations.alike(&other.operations)
            && own == ends(other)
    }

    /// Each mean over ranks, in order: its operation, and its number of values.
    pub(crate) fn synchronised(&self) -> impl Iterator<Item = (usize, usize)> {
        let operations = self.operations.iter().enumerate();
        let means = operations.filter(|(_, one)| one.kind.synchronises);
        means.map(|(place, one)| {
            let values = one
                .outputs()
                .map(|made| self.tensors.shape(made).num_elements());
            (place, values.sum())
        })
    }

    /// Number of elements and bytes of the trained parameters.
    pub(crate) fn trained(&self) -> impl Iterator<Item = (usize, Bytes)> {
        let trained = self.parameters.iter().filter(|one| one.trains);
        trained.map(|one| {
            let numbers = self.tensors.shape(one.tensor).num_elements();
            (numbers, Bytes(self.tensors.value_bytes(one.tensor)))
        })
    }

    /// The parameters whose gradient is made by exchanging dimensions.
    pub(crate) fn turned(&self) -> FxHashSet<usize> {
        let parameters = self.parameters.iter();
        let gradients: HashMap<usize, usize> = parameters
            .filter_map(|one| Some((one.gradient?, one.tensor)))
            .collect();
        let operations = self.operations.iter();
        let made = operations.filter(|one| exchanges_dimensions(&one.kind.name));
        made.flat_map(|one| {
            one.outputs()
                .filter_map(|output| gradients.get(&output).copied())
        })
        .collect()
    }

    /// Bytes of the gradients' storage; for views, the storage behind them, counted once.
    pub(super) fn gradient_bytes(&self, graph: &Graph) -> Bytes {
        let gradients = self.parameters.iter().filter_map(|one| one.gradient);
        let roots = graph.roots();
        let storage: FxHashSet<_> = gradients.map(|one| roots[one]).collect();
        let storage = storage.into_iter();
        storage.map(|root| graph.tensors[root.index()].bytes).sum()
    }

    /// Bytes of the gradients' storage beyond their numbers.
    pub(super) fn beside_gradients(&self, graph: &Graph) -> Bytes {
        let gradients = self.parameters.iter().filter_map(|one| one.gradient);
        let numbers = gradients.map(|one| Bytes(self.tensors.value_bytes(one)));
        self.gradient_bytes(graph) - numbers.sum()
    }

    /// What so many parts of a batch hold between them: the sum of gradients in `f32`, of two parts the first's as they are, and
    /// the auxiliary outputs of all but one. And the most that adding to the sum takes besides.
    pub(super) fn of_parts(&self, parts: usize) -> [Bytes; 2] {
        if parts < 2 {
            return [Bytes::ZERO; 2];
        }
        let bytes = |tensor: usize| self.tensors.value_bytes(tensor);
        let wide = |tensor: usize| {
            let numbers = self.tensors.shape(tensor).num_elements() as u64;
            bytes(tensor).max(numbers * Dtype::F32.bytes())
        };
        let held = |tensor: usize| match parts {
            2 => bytes(tensor),
            _ => wide(tensor),
        };
        let auxiliary: u64 = self.auxiliary.iter().map(|one| bytes(*one)).sum();
        let auxiliary = Bytes(auxiliary.saturating_mul(parts as u64 - 1));
        let most = self.gradients().map(wide).max().unwrap_or_default();
        [
            Bytes(self.gradients().map(held).sum()) + auxiliary,
            Bytes(most),
        ]
    }

    /// Tensors that must exist at the end.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = usize> + '_ {
        self.gradients().chain(self.other_outputs())
    }

    /// The outputs besides the gradients of parameters.
    pub(super) fn other_outputs(&self) -> impl Iterator<Item = usize> + '_ {
        let auxiliary = self.auxiliary.iter().copied();
        auxiliary
            .chain(self.statistics.iter().map(|(_, tensor)| *tensor))
            .chain([self.loss])
    }

    /// The gradients that the step returns.
    pub(crate) fn gradients(&self) -> impl Iterator<Item = usize> + '_ {
        let after = self.update == Update::After;
        let gradients = self.parameters.iter().filter_map(|one| one.gradient);
        gradients.filter(move |_| after)
    }

    /// The largest tensor, the first of several, and its bytes.
    pub(super) fn largest(&self) -> Option<(usize, Bytes)> {
        let sizes = (0..self.tensors.len()).map(|one| (one, Bytes(self.tensors.value_bytes(one))));
        sizes.rev().max_by_key(|(_, bytes)| *bytes)
    }

    /// Fails if the device has rejected a kernel since the last call, so that results are missing. Queued work must be done.
    pub(super) fn check_device(&self, meter: &dyn Meter) -> Result<(), RecordError> {
        let Some(refusal) = quiet::take_refusal() else {
            return Ok(());
        };
        match meter.largest_buffer().zip(self.largest()) {
            Some((limit, (tensor, bytes))) if bytes > limit => Err(RecordError::TensorTooLarge {
                tensor: self.describe(tensor),
                bytes,
                limit,
                refusal,
            }),
            _ => Err(RecordError::Device(refusal)),
        }
    }

    /// A tensor's description: `the gradient of layers.1.weight`.
    pub(super) fn describe(&self, tensor: usize) -> String {
        let shape = self.tensors.shape(tensor).as_slice();
        for Parameter {
            path,
            tensor: own,
            gradient,
            ..
        } in &self.parameters
        {
            if *own == tensor {
                return format!("the parameter `{path}` of shape {shape:?}");
            }
            if *gradient == Some(tensor) {
                return format!("the gradient of `{path}`, of shape {shape:?},");
            }
        }
        if self.inputs.contains(&tensor) {
            return format!("the batch's tensor of shape {shape:?}");
        }
        let mut operations = self.operations.iter();
        let made_by = operations.find(|one| one.outputs().any(|output| output == tensor));
        match made_by {
            Some(operation) => format!(
                "the output of `{}`, of shape {shape:?},",
                operation.kind.name
            ),
            None => format!("a constant of shape {shape:?}"),
        }
    }
}

/// Which operations the outputs need, and all tensors that they need.
fn needed(
    operations: &[OperationIr],
    outputs: FxHashSet<TensorId>,
    given: &FxHashSet<TensorId>,
    start: usize,
) -> (Vec<bool>, FxHashSet<TensorId>) {
    let mut tensors = outputs;
    let mut keep = vec![false; operations.len()];
    for (place, operation) in operations.iter().enumerate().rev() {
        let makes_given = operation.outputs().any(|tensor| given.contains(&tensor.id));
        if makes_given || matches!(operation, OperationIr::Init(_) | OperationIr::Drop(_)) {
            continue;
        }
        let wanted = operation
            .outputs()
            .any(|tensor| tensors.contains(&tensor.id));
        // Draws before the start initialised parameters.
        if wanted || (place > start && draws(operation)) {
            keep[place] = true;
            tensors.extend(operation.inputs().map(|tensor| tensor.id));
        }
    }
    (keep, tensors)
}

/// Finds, operation by operation, the stage and the part of the step to which each belongs.
struct Parts {
    /// The indices of the marks, in the order in which they were made.
    marks: FxHashMap<TensorId, usize>,
    backward_mark: TensorId,
    stage: Option<u32>,
    backward: bool,
}

impl Parts {
    fn new(marks: &[TensorId], backward_mark: TensorId) -> Self {
        Self {
            marks: marks.iter().copied().zip(0..).collect(),
            backward_mark,
            stage: None,
            backward: false,
        }
    }

    /// Processes the next operation, which may be a mark.
    fn pass(&mut self, operation: &OperationIr) {
        for tensor in operation.outputs() {
            if let Some(&mark) = self.marks.get(&tensor.id) {
                // There is a mark before each stage, and one after the last.
                self.stage = (mark + 1 < self.marks.len()).then_some(mark as u32);
            }
            if tensor.id == self.backward_mark {
                (self.stage, self.backward) = (None, true);
            }
        }
    }
}
