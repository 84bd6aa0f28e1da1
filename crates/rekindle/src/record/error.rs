//! Why a step cannot be recorded or run, and what to change.

use std::{convert::Infallible, fmt};

use burn_ir::OperationIr;
use rekindle_plan::{Bytes, graph::GraphPlanError};
use thiserror::Error;

use super::{operation::name_of, update::Update};
use crate::{
    meter::{FailedAllocation, NotInstalled},
    reduce::ReduceError,
    size::SizeError,
};

/// What a panic says where a tensor of another device came into the step.
pub(super) const FOREIGN: &str = "a tensor that is not of the recording device";

/// Why a step cannot be recorded, planned or run.
#[derive(Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A recording inside a recording.
    #[error("a step cannot be recorded while another is being recorded on the same thread")]
    Nested,
    /// burn's recording device refused.
    #[error("burn could not record the step: {0}")]
    Capture(String),
    /// The step reads a tensor's numbers.
    #[error(
        "the step reads the value of a tensor, {after}. Nothing is computed while a step is recorded: decide by \
         tensor operations (`mask_where`, `greater`), or pass the value in with the batch"
    )]
    ReadsValue {
        /// Where it stopped.
        after: String,
    },
    /// A tensor came from outside.
    #[error(
        "the step uses a tensor from outside, {after}. Pass it in with the batch (a tuple will do), hold it in the \
         module, or make it on the device of the batch: `Tensor::zeros(shape, &x.device())`"
    )]
    Outside {
        /// Where it stopped.
        after: String,
    },
    /// The loss is not of the recording.
    #[error("the loss is not computed from the model and the batch that the step is given")]
    LossElsewhere,
    /// The step seeds the generator.
    #[error(
        "the step seeds the random number generator, {after}. Call `device.seed` before the step"
    )]
    Seeds {
        /// Where it stopped.
        after: String,
    },
    /// The step moves tensors between devices.
    #[error(
        "the step moves a tensor between devices or out of autodiff (`to_device`, `inner`), {after}. Use `detach` to \
         cut a gradient, keep the model on one device, and use each batch norm once in a step: its second use moves \
         its statistics"
    )]
    Moves {
        /// Where it stopped.
        after: String,
    },
    /// Something else panicked.
    #[error("the step panicked while it was recorded, {after}: {panic}")]
    Panicked {
        /// Where it stopped.
        after: String,
        /// The panic's message.
        panic: String,
    },
    /// The module's device cannot run recordings.
    #[error(
        "recorded steps run on burn's flex, CUDA and wgpu backends; the model is on another, or it has no parameter \
         and the batch no tensor"
    )]
    Backend,
    /// Memory cannot be measured.
    #[error(transparent)]
    Meter(#[from] NotInstalled),
    /// No plan fits.
    #[error("no plan fits {budget}: the smallest workable budget is {smallest}")]
    Infeasible {
        /// What was asked for.
        budget: Bytes,
        /// What would do.
        smallest: Bytes,
    },
    /// Kernels are not chosen yet, which may take more than the budget.
    #[error(
        "kernels for this step are not chosen yet on this GPU: all variants are tried once, which may take up to {needed}, \
         and the budget is {budget}"
    )]
    Choosing {
        /// What was asked for.
        budget: Bytes,
        /// What it may take.
        needed: Bytes,
    },
    /// No plan fits a share of the plain step's peak.
    #[error(
        "no plan fits {percent}% of the plain step's peak of {plain}, which is {budget}: the smallest workable budget \
         is {smallest}, or {}%",
        (100.0 * smallest.0 as f64 / plain.0 as f64).ceil()
    )]
    InfeasibleShare {
        /// What was asked for.
        percent: f64,
        /// The plain step's predicted peak.
        plain: Bytes,
        /// The bytes that were asked for.
        budget: Bytes,
        /// What would do.
        smallest: Bytes,
    },
    /// The plan that was asked for cannot be made.
    #[error("{0}")]
    Plan(Box<GraphPlanError>),
    /// A budget that is no size.
    #[error("this is not a budget: {0}")]
    Size(#[from] SizeError),
    /// The model that is run lacks a parameter that was recorded.
    #[error("the model has no parameter `{path}`: it is not the one that was recorded")]
    Parameter {
        /// Its path.
        path: String,
    },
    /// A value that is not finite, or a failed buffer.
    #[error("{what} is not finite: nothing was handed out")]
    NotFinite {
        /// The loss, or the path of the first parameter whose gradient it is.
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
        /// Why it failed.
        source: Box<RecordError>,
    },
    /// The step is run in another way than it was recorded for.
    #[error(
        "the step was recorded to update parameters {update}: {}",
        match update {
            Update::After => "`run` hands out its gradients; `with_update_in_backward` records it for `run_updating`",
            Update::InBackward => "`run_updating` runs it; `with_optimizer` records it for `run`, which hands out gradients",
        }
    )]
    OtherUpdate {
        /// What it was recorded for.
        update: Update,
    },
    /// An allocation of the process failed, and the step was abandoned.
    #[error("{0}")]
    OutOfMemory(FailedAllocation),
    /// The step came to hold more than its budget, and was abandoned.
    #[error("the step holds {in_use}, more than its budget of {budget}: it was abandoned")]
    OverBudget {
        /// Bytes in use.
        in_use: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The device refused a kernel, and a tensor of the step is larger than one of its buffers may be. No plan changes that.
    #[error(
        "{tensor} takes {bytes}, but one buffer of this device holds {limit} at most: no plan and no budget changes \
         that; a smaller batch may, or another device ({refusal})"
    )]
    TensorTooLarge {
        /// What the largest tensor is.
        tensor: String,
        /// Its bytes.
        bytes: Bytes,
        /// The most that a buffer may take.
        limit: Bytes,
        /// What the device said.
        refusal: String,
    },
    /// Another rank could not go on, so that none does.
    #[error("rank {rank} could not go on, and all ranks gave the step up: {message}")]
    OtherRank {
        /// The first of those that failed.
        rank: usize,
        /// What it says.
        message: String,
    },
    /// Ranks that share the step cannot go on together.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
    /// There is no host memory beside the device's.
    #[error("the device's memory is the host's: there is nowhere to move tensors to")]
    NoLink,
    /// The device ran out of memory or failed.
    #[error("the device failed while the step ran: {0}")]
    Device(String),
}

impl From<GraphPlanError> for RecordError {
    fn from(error: GraphPlanError) -> Self {
        Self::Plan(Box::new(error))
    }
}

/// Of sizes that are sizes already.
impl From<Infallible> for RecordError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The message: `main` prints errors so.
impl fmt::Debug for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl RecordError {
    /// What a panic of the step, or of burn below it, means.
    pub(super) fn of_panic(panic: &str, last: Option<&OperationIr>) -> Self {
        let after = match last {
            Some(operation) => format!(
                "after operation {}{}",
                name_of(operation),
                operation
                    .outputs()
                    .next()
                    .map(|out| format!(" of shape {:?}", out.shape.as_slice()))
                    .unwrap_or_default()
            ),
            None => "before its first operation".to_owned(),
        };
        let says = |words: &[&str]| words.iter().any(|word| panic.contains(word));
        if says(&[
            "no concrete value",
            "no initialized value",
            "into_data",
            "read the tensor",
        ]) {
            Self::ReadsValue { after }
        } else if says(&["seeding is not supported"]) {
            Self::Seeds { after }
        } else if says(&[
            "do not support autodiff",
            "does not support autodiff",
            "Cannot move a tensor",
        ]) {
            Self::Moves { after }
        } else if says(&[
            FOREIGN,
            "same device",
            "same backend",
            "Expected",
            "mismatch",
        ]) {
            Self::Outside { after }
        } else {
            let panic = panic.to_owned();
            Self::Panicked { after, panic }
        }
    }
}
