//! What one training step gives.

use burn::{optim::GradientsParams, tensor::Tensor};

use super::watch::TraceEntry;
use crate::meter::PhaseReading;

/// What one training step gives.
#[derive(Debug)]
pub struct StepOutput<T> {
    /// The loss, shape `[1]`.
    pub loss: Tensor<1>,
    /// The auxiliary output of the loss closure, detached.
    pub extra: T,
    /// The gradient of every parameter that requires one, for any burn optimizer.
    pub gradients: GradientsParams,
    /// Forward, loss and backward, if the executor has a meter.
    pub phases: Vec<PhaseReading>,
    /// How often each stage ran forward in this step.
    pub forward_counts: Vec<usize>,
    /// Memory after each action, if the executor [traces](super::Executor::traced).
    pub trace: Vec<TraceEntry>,
}
