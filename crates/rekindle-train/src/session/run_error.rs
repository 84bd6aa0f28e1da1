//! Errors of a run.

use std::path::PathBuf;

use rekindle_plan::{Bytes, PlanError};
use thiserror::Error;

use super::OutOfMemory;
use crate::{
    data::DataError, device::Unavailable, file_error::FileError, model::shape_error::ShapeError,
    nonfinite::NonFinite, train_error::TrainError,
};
use rekindle::record::RecordError;

/// The error of a run that could not be started or finished.
#[derive(Debug, Error)]
pub enum RunError {
    /// A layer cannot take its input.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The data cannot fill a batch.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The given schedule exceeds its budget.
    #[error(
        "this plan needs {peak} on this device, over its budget of {budget}: `rekindle plan` makes another"
    )]
    OverBudget {
        /// Its peak on the chain measured now.
        peak: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The plan needs more memory than is free.
    #[error("the plan needs {peak}, but only {free}{} is free", of_total(.total))]
    NotEnough {
        /// Its peak.
        peak: Bytes,
        /// Free memory.
        free: Bytes,
        /// Total memory, if known.
        total: Option<Bytes>,
    },
    /// One tensor is larger than any buffer of the device. No plan changes that.
    #[error("{tensor} needs {bytes} in one buffer; this device allows {limit}")]
    TensorTooLarge {
        /// The largest tensor, in words.
        tensor: String,
        /// Whether it is a parameter, or the gradient of one.
        is_weight: bool,
        /// Its bytes.
        bytes: Bytes,
        /// The limit for one buffer.
        limit: Bytes,
    },
    /// Memory ran out in a step, and no smaller plan helps.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// Settings do not go together, or not with so many ranks; or a plan was made for another model.
    #[error("{0}")]
    Refused(String),
    /// A step could not be recorded, or not run.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The loss or a gradient is not finite, and the settings stop the run: the state is that before the step.
    #[error(
        "the loss of step {} is {}{}{}. It is batch {batch} of epoch {epoch}; the model, its statistics and the \
         optimizer are what they were before the step", found.step, found.loss, in_stage(found, stage),
         found.scaled()
    )]
    NonFinite {
        /// What was found.
        found: Box<NonFinite>,
        /// The epoch of its batch, from 1.
        epoch: usize,
        /// The batch within its epoch, from 1.
        batch: usize,
        /// The stage of the first gradient that is not finite.
        stage: Option<String>,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] Unavailable),
    /// The run's folder, or the weights to start from, cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The run has done all requested steps; its record has the results.
    #[error(
        "{}: all {steps} steps are done, so nothing is left to do; `--steps N` trains further", path.display()
    )]
    Finished {
        /// The run's folder.
        path: PathBuf,
        /// Steps asked for.
        steps: usize,
    },
}

fn of_total(total: &Option<Bytes>) -> String {
    total.map_or_else(String::new, |total| format!(" of {total}"))
}

fn in_stage(found: &NonFinite, stage: &Option<String>) -> String {
    match (&found.gradient, stage) {
        (Some(path), Some(stage)) => {
            format!(
                ", and the first gradient that is not finite is that of `{path}` in stage `{stage}`"
            )
        }
        _ => String::new(),
    }
}

impl From<RecordError> for RunError {
    fn from(error: RecordError) -> Self {
        Self::Train(error.into())
    }
}

impl RunError {
    /// Whether another rank reports the error.
    pub(crate) fn is_of_another_rank(&self) -> bool {
        matches!(self, Self::Train(error) if error.is_of_another_rank())
    }

    /// Whether ranks can no longer communicate.
    pub(crate) fn is_of_network(&self) -> bool {
        matches!(self, Self::Train(error) if error.is_of_network())
    }
}
