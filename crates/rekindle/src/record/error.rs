//! Errors of recording and running a step, with advice on what to change.

use std::fmt;

use burn_ir::OperationIr;
use rekindle_plan::{Bytes, graph::PlanError};
use thiserror::Error;

use super::{operation::name_of, update::Update};
use crate::{
    meter::{FailedAllocation, NotInstalled},
    reduce::ReduceError,
    size::SizeError,
};

/// Part of the panic message when the step uses a tensor of another device.
pub(super) const FOREIGN: &str = "a tensor that is not of the recording device";

/// The message of a step that reads a value.
pub(super) const READS: &str = "burn waits for the value of a tensor";

/// The message of a step that calls `backward`.
pub(super) const BACKWARD: &str = "the step calls `backward`";

/// The error of a step that cannot be recorded, planned or run.
#[derive(Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// burn's recording device reported an error.
    #[error("burn could not record the step: {0}")]
    Capture(String),
    /// The step cannot be recorded: what it does, where, and what to do instead.
    #[error("{0}")]
    Unrecordable(String),
    /// The loss is not part of the recording.
    #[error("the loss is not computed from the model and the batch that the step is given")]
    LossElsewhere,
    /// The module's device cannot run recordings.
    #[error(
        "recorded steps run on burn's flex, CUDA and wgpu backends; the model is on another, or it has no parameter \
         and the batch no tensor"
    )]
    Backend,
    /// A batch has no part, more parts than planned, or parts of several shapes.
    #[error("{0}")]
    Parts(String),
    /// Memory cannot be measured.
    #[error(transparent)]
    Meter(#[from] NotInstalled),
    /// No plan fits.
    #[error("no plan fits {budget}: the smallest workable budget is {smallest} ({} bytes){}", smallest.0, held_at(floor.as_deref()))]
    Infeasible {
        /// The requested value.
        budget: Bytes,
        /// The smallest budget for which a plan exists.
        smallest: Bytes,
        /// Where the step then has its peak, if the step was planned where it is recorded.
        floor: Option<String>,
    },
    /// Kernels are not chosen yet, and choosing them may exceed the budget.
    #[error(
        "kernels for this step are not chosen yet on this GPU: all variants are tried once, which may take up to {needed}, \
         and the budget is {budget}"
    )]
    Choosing {
        /// The requested value.
        budget: Bytes,
        /// Memory that it may need.
        needed: Bytes,
    },
    /// The requested plan cannot be made.
    #[error("{0}")]
    Plan(Box<PlanError>),
    /// The budget is not a valid size.
    #[error("this is not a budget: {0}")]
    Size(#[from] SizeError),
    /// The model has a parameter that was not recorded.
    #[error(
        "the parameter `{path}` was not recorded: the model was made or loaded anew, or got another layer; record its \
         step again"
    )]
    Parameter {
        /// Its path.
        path: String,
    },
    /// A value is not finite, or a buffer failed.
    #[error("{what} is not finite: nothing was handed out")]
    NotFinite {
        /// The loss, or the path of the first parameter whose gradient is affected.
        what: String,
    },
    /// A step that updates in the backward pass failed after some updates, which cannot be taken back.
    #[error(
        "{source}; {updated} of {of} parameters were updated by then, and that cannot be taken back: go on from a \
         snapshot of the model and the optimizer"
    )]
    PartlyUpdated {
        /// Parameters with new values.
        updated: usize,
        /// Parameters that the step updates.
        of: usize,
        /// The cause.
        source: Box<RecordError>,
    },
    /// The step was recorded for another way of updating parameters.
    #[error(
        "the step was recorded to update parameters {update}: {}",
        match update {
            Update::After => "`run` and `run_parts` hand out gradients; `with_update_in_backward` records it for `run_updating`",
            Update::InBackward => "`run_updating` runs it; `with_optimizer` records it for `run` and `run_parts`, which hand out gradients",
        }
    )]
    OtherUpdate {
        /// The recorded way.
        update: Update,
    },
    /// An allocation of the process failed, and the step was abandoned.
    #[error("{0}")]
    OutOfMemory(FailedAllocation),
    /// The step exceeded its budget, and was abandoned.
    #[error("the step holds {in_use}, more than its budget of {budget}: it was abandoned")]
    OverBudget {
        /// Bytes in use.
        in_use: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The device rejected a kernel, and a tensor of the step is larger than the device's largest buffer. No plan
    /// changes that.
    #[error(
        "{tensor} needs {bytes} in one buffer; this device allows {limit}. Use a smaller batch or another device \
         ({refusal})"
    )]
    TensorTooLarge {
        /// A description of the largest tensor.
        tensor: String,
        /// Its bytes.
        bytes: Bytes,
        /// The device's limit for one buffer.
        limit: Bytes,
        /// The device's error message.
        refusal: String,
    },
    /// Another rank failed, so all ranks abandon the step.
    #[error("rank {rank} failed, so all ranks abandoned the step: {message}")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// Its message.
        message: String,
    },
    /// A collective operation of the ranks failed.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
    /// The device has no memory separate from the host's.
    #[error("the device's memory is the host's: there is nowhere to move tensors to")]
    NoLink,
    /// The device ran out of memory or failed, or the optimizer panicked.
    #[error("the step failed while it ran: {0}")]
    Device(String),
}

/// The end of an error message, which says where the peak is.
pub fn held_at(floor: Option<&str>) -> String {
    floor.map_or_else(String::new, |floor| format!(". It is held {floor}"))
}

impl From<PlanError> for RecordError {
    fn from(error: PlanError) -> Self {
        Self::Plan(Box::new(error))
    }
}

/// Shows the message, because `main` prints errors with `Debug`.
impl fmt::Debug for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl RecordError {
    /// The error for a panic of the step, or of burn below it, after these operations.
    pub(super) fn of_panic(panic: &str, operations: &[OperationIr]) -> Self {
        let after = after(operations);
        let is = |words: &[&str]| words.iter().any(|word| panic.contains(word));
        Self::Unrecordable(if panic == BACKWARD {
            format!(
                "{BACKWARD}, {after}. Return the loss instead: burn's backward pass of it is recorded with the step, and \
                 `Step::run` hands out the gradients"
            )
        } else if is(&[READS, "no concrete value", "no initialized value"]) {
            format!(
                "the step reads the value of a tensor, {after}. Decide by tensor operations (`mask_where`, `greater`), or \
                 pass the value in with the batch. `one_hot`, `argwhere`, `mask_select`, `all_close` and a debug build's \
                 CTC loss read values, too"
            )
        } else if is(&["seeding is not supported"]) {
            format!(
                "the step seeds the random number generator, {after}. Call `device.seed` before the step"
            )
        } else if is(&[
            "do not support autodiff",
            "does not support autodiff",
            "Cannot move a tensor",
        ]) {
            format!(
                "the step moves a tensor between devices or out of autodiff (`to_device`, `inner`), {after} ({panic}). Use \
                 `detach` to cut a gradient, and keep the model on one device. Use a batch norm a second time through \
                 `rekindle::reused(&module)`"
            )
        } else if is(&[
            FOREIGN,
            "same device",
            "same backend",
            "Expected",
            "mismatch",
        ]) {
            format!(
                "the step uses a tensor from outside, {after} ({panic}). Pass it in with the batch, or hold it in the \
                 module. Or make it on the batch's device: `Tensor::zeros(shape, &x.device())`"
            )
        } else {
            format!("the step panicked while it was recorded, {after}: {panic}")
        })
    }
}

/// Where a step stopped that has recorded these operations.
fn after(operations: &[OperationIr]) -> String {
    // A mark, or a tensor that is not filled yet.
    let nothing =
        |one: &&OperationIr| matches!(one, OperationIr::Init(_)) || name_of(one) == "Empty";
    match operations.iter().rfind(|one| !nothing(one)) {
        None => "before its first operation".to_owned(),
        Some(last) => {
            let made = last.outputs().next();
            let shape = made.map(|made| format!(" of shape {:?}", made.shape.as_slice()));
            format!(
                "after operation {}{}",
                name_of(last),
                shape.unwrap_or_default()
            )
        }
    }
}
