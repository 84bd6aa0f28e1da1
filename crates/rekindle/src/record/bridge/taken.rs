//! The result of running a step on the recording device.

use burn::tensor::TensorData;
use burn_backend::BackendTypes;
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::backends::Autodiff;
use burn_ir::{OperationIr, TensorId, TensorIr};

use crate::record::places::{Parameter, Place};

pub(super) type TrackedBackend = Autodiff<Capture>;
pub(super) type TrackedFloat = <TrackedBackend as BackendTypes>::FloatTensorPrimitive;

/// The result of running a step on the recording device, with burn's tensor ids, which count through the process.
pub(in crate::record) struct Taken<A> {
    /// Forward, loss and burn's backward, in burn's order.
    pub(in crate::record) operations: Vec<OperationIr>,
    /// Tensors created from host data.
    pub(in crate::record) constants: Vec<(TensorId, TensorData)>,
    /// The module's places.
    pub(in crate::record) places: Vec<Place>,
    /// All tensors of the module, including running statistics, in the order of their first places.
    pub(in crate::record) parameters: Vec<Parameter<TensorId>>,
    /// The batch's tensors.
    pub(in crate::record) inputs: Vec<TensorIr>,
    /// The loss.
    pub(in crate::record) loss: TensorId,
    /// The auxiliary output, on the recording device, and its tensors.
    pub(in crate::record) auxiliary: A,
    pub(in crate::record) auxiliary_tensors: Vec<TensorId>,
    /// New values of running statistics, by place.
    pub(in crate::record) statistics: Vec<(usize, TensorId)>,
    /// Tensors created by the marks of stages: the position of their operation is the position of the mark.
    pub(in crate::record) marks: Vec<TensorId>,
    /// Number of operations that made the model and the batch, before the step.
    pub(in crate::record) start: usize,
    /// Created after the loss, before its backward pass.
    pub(in crate::record) backward_mark: TensorId,
}
