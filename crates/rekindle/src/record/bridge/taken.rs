//! The result of running a step on the recording device.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use burn::tensor::TensorData;
use burn_backend::BackendTypes;
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::backends::Autodiff;
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};

use crate::record::{operation::hash_with, places::Place};

pub(super) type TrackedBackend = Autodiff<Capture>;
pub(super) type TrackedFloat = <TrackedBackend as BackendTypes>::FloatTensorPrimitive;

/// The result of running a step on the recording device. Tensors are numbered in the order in which burn mentions them,
/// so that equal steps give equal results.
pub(in crate::record) struct Taken<A> {
    /// Forward, loss and burn's backward, in burn's order.
    pub(in crate::record) operations: Vec<OperationIr>,
    /// Tensors created from host data.
    pub(in crate::record) constants: Vec<(TensorId, TensorData)>,
    /// The module's places.
    pub(in crate::record) places: Vec<Place>,
    /// All tensors of the module, including running statistics, in the order of their first places.
    pub(in crate::record) parameters: Vec<TakenParameter>,
    /// The batch's tensors.
    pub(in crate::record) inputs: Vec<TensorIr>,
    /// The loss.
    pub(in crate::record) loss: TensorId,
    /// The auxiliary output, on the recording device, and its tensors.
    pub(in crate::record) auxiliary: A,
    pub(in crate::record) auxiliary_tensors: Vec<TensorId>,
    /// Gradients of the batch's float tensors, if requested; `None` for a tensor on which the loss does not depend.
    pub(in crate::record) input_gradients: Vec<Option<TensorId>>,
    /// New values of running statistics, by place.
    pub(in crate::record) statistics: Vec<(usize, TensorId)>,
    /// Tensors created by the marks of stages: the position of their operation is the position of the mark.
    pub(in crate::record) marks: Vec<TensorId>,
    /// Number of operations that made the model and the batch, before the step.
    pub(in crate::record) start: usize,
    /// Created after the loss, before its backward pass.
    pub(in crate::record) backward_mark: TensorId,
}

/// A tensor of the module.
pub(in crate::record) struct TakenParameter {
    /// Its first place.
    pub(in crate::record) place: usize,
    /// Its path in the module: `layers.1.weight`.
    pub(in crate::record) path: String,
    pub(in crate::record) tensor: TensorId,
    /// Its gradient, if it trains and the loss depends on it.
    pub(in crate::record) gradient: Option<TensorId>,
}

impl<A> Taken<A> {
    /// Numbers the tensors, whose ids burn counts through the process, and sets their status, which depends on who holds them.
    pub(super) fn numbered(mut self) -> Self {
        struct Numbers {
            /// The smallest of burn's ids.
            first: u64,
            of: Vec<Option<TensorId>>,
            next: u64,
        }
        impl Numbers {
            fn renumber(&mut self, id: &mut TensorId) {
                // A tensor of an earlier recording, which a step has kept, has none.
                let Some(place) = id.value().checked_sub(self.first) else {
                    return;
                };
                let place = place as usize;
                if place >= self.of.len() {
                    self.of.resize(place + 1, None);
                }
                *id = *self.of[place].get_or_insert_with(|| {
                    self.next += 1;
                    TensorId::new(self.next - 1)
                });
            }
        }
        impl IrVisitorMut for Numbers {
            fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
                self.renumber(&mut tensor.id);
                tensor.status = TensorStatus::NotInit;
            }
        }
        let made = self.operations.iter().flat_map(OperationIr::outputs);
        let made = made.map(|tensor| tensor.id.value());
        let constants = self.constants.iter().map(|(id, _)| id.value());
        let mut numbers = Numbers {
            first: made.chain(constants).min().unwrap_or_default(),
            of: Vec::new(),
            next: 0,
        };
        let given = self.parameters.iter_mut().map(|one| &mut one.tensor);
        let given = given.chain(self.inputs.iter_mut().map(|input| &mut input.id));
        given.for_each(|id| numbers.renumber(id));
        let (before, step) = self.operations.split_at_mut(self.start);
        for operation in step.iter_mut().chain(before) {
            operation.visit_mut(&mut numbers);
        }
        let gradients = self.parameters.iter_mut().flat_map(|one| &mut one.gradient);
        let others = gradients
            .chain(self.constants.iter_mut().map(|(id, _)| id))
            .chain(&mut self.auxiliary_tensors)
            .chain(self.input_gradients.iter_mut().flatten())
            .chain(self.statistics.iter_mut().map(|(_, id)| id))
            .chain(&mut self.marks)
            .chain([&mut self.loss, &mut self.backward_mark]);
        others.for_each(|id| numbers.renumber(id));
        self
    }

    /// Equal for equal steps: of all that is recorded, without the values of the module and the batch.
    pub(in crate::record) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for operation in &self.operations[self.start..] {
            hash_with(operation, &mut hasher);
        }
        let read = self.operations[self.start..].iter();
        let read = read.flat_map(|one| one.inputs().map(|tensor| tensor.id));
        let read: HashSet<TensorId> = read.collect();
        for (id, data) in self.constants.iter().filter(|(id, _)| read.contains(id)) {
            (id, data.as_bytes()).hash(&mut hasher);
        }
        for one in &self.parameters {
            (one.place, one.gradient).hash(&mut hasher);
        }
        (
            self.loss,
            &self.auxiliary_tensors,
            &self.input_gradients,
            &self.statistics,
        )
            .hash(&mut hasher);
        hasher.finish()
    }
}
