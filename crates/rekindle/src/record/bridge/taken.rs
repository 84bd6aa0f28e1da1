//! What one run of a step on the recording device leaves.

use burn::{
    module::ParamId,
    tensor::{DType, Shape, TensorData},
};
use burn_backend::BackendTypes;
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::backends::Autodiff;
use burn_ir::{OperationIr, TensorId};

pub(super) type TrackedBackend = Autodiff<Capture>;
pub(super) type TrackedFloat = <TrackedBackend as BackendTypes>::FloatTensorPrimitive;

/// What one run of a step on the recording device leaves: ids are those of the recording.
pub(in crate::record) struct Taken<A> {
    /// Forward, loss and burn's backward, in burn's order.
    pub(in crate::record) operations: Vec<OperationIr>,
    /// Tensors made of numbers of the host.
    pub(in crate::record) constants: Vec<(TensorId, TensorData)>,
    /// All tensors that the module holds, running statistics too.
    pub(in crate::record) parameters: Vec<TakenParameter>,
    /// The batch's tensors.
    pub(in crate::record) inputs: Vec<TakenInput>,
    /// The loss.
    pub(in crate::record) loss: TensorId,
    /// What else the step returned, on the recording device, and its tensors.
    pub(in crate::record) auxiliary: A,
    pub(in crate::record) auxiliary_tensors: Vec<TensorId>,
    /// Gradients of the batch's float tensors, where wanted; `None` where the loss does not depend on one.
    pub(in crate::record) input_gradients: Vec<Option<TensorId>>,
    /// New values of running statistics.
    pub(in crate::record) statistics: Vec<(ParamId, TensorId)>,
    /// Made by the marks of stages: the tensor's place among the operations is the mark's.
    pub(in crate::record) marks: Vec<TensorId>,
    /// Made when model and batch were there, before the step.
    pub(in crate::record) start_mark: TensorId,
    /// Made after the loss and before its backward.
    pub(in crate::record) backward_mark: TensorId,
}

/// A tensor of the module.
pub(in crate::record) struct TakenParameter {
    pub(in crate::record) id: ParamId,
    /// Where the module has it: `layers.1.weight`.
    pub(in crate::record) path: String,
    pub(in crate::record) tensor: TensorId,
    pub(in crate::record) shape: Shape,
    pub(in crate::record) dtype: DType,
    /// Its gradient, if it trains and the loss depends on it.
    pub(in crate::record) gradient: Option<TensorId>,
    pub(in crate::record) trains: bool,
}

/// A tensor of the batch.
pub(in crate::record) struct TakenInput {
    pub(in crate::record) tensor: TensorId,
    pub(in crate::record) shape: Shape,
    pub(in crate::record) dtype: DType,
}
