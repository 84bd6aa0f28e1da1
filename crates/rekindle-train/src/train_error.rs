//! Errors of a training step.

use super::{
    nonfinite::NonFinite,
    shortage::{Shortage, asked, speaks_of_memory},
};
use crate::{
    device::{device_fault, refused_kernel},
    model::{spec::SampleShape, value::ValueError},
};
use rekindle::{quiet::catch, record::RecordError, reduce::ReduceError};

/// A step that could not run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// No loss accepts such an output.
    #[error(
        "one sample of the model's output has the shape {got}, but the loss needs one row of numbers: end with a flatten and a linear layer"
    )]
    Output {
        /// The shape.
        got: SampleShape,
    },
    /// The batch does not fit the model.
    #[error(transparent)]
    Shape(#[from] ValueError),
    /// The next batch could not be built.
    #[error("the next batch cannot be built: {0}")]
    Batch(String),
    /// The recorded step could not run.
    #[error(transparent)]
    Recorded(#[from] RecordError),
    /// The loss or a gradient is not finite, and the settings stop there.
    #[error("{0}")]
    NonFinite(Box<NonFinite>),
    /// There is too little memory; a smaller plan may help.
    #[error("{0}")]
    Short(Shortage),
    /// There is too little memory, detected after some parameters were updated: a smaller plan may help after going
    /// back to a snapshot.
    #[error("{error}")]
    ShortAfterUpdates {
        /// What was short.
        shortage: Shortage,
        /// How far the step came.
        error: RecordError,
    },
    /// Another rank failed and reports the error: a step has no effect, or all ranks end.
    #[error("another rank failed")]
    OtherRank,
}

impl TrainError {
    /// Runs `call`, in which burn reads a device's values and reports failures by panics. Any other panic propagates.
    pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Self> {
        let of_device = |message: &str| {
            speaks_of_memory(message)
                || device_fault(message).is_some()
                || refused_kernel(message).is_some()
        };
        catch(call).map_err(|message| match of_device(&message) {
            true => RecordError::Device(message).into(),
            false => panic!("{message}"),
        })
    }

    /// Whether ranks can no longer communicate.
    pub(super) fn is_of_network(&self) -> bool {
        // All ranks have found that they differ.
        let differ = |error: &ReduceError| matches!(error, ReduceError::Differ { .. });
        matches!(self.of_step(), Some(RecordError::Reduce(error)) if !differ(error))
    }

    /// Whether another rank reports the error.
    pub(super) fn is_of_another_rank(&self) -> bool {
        matches!(self, Self::OtherRank)
            || matches!(self.of_step(), Some(RecordError::OtherRank { .. }))
    }

    /// The error of the recorded step, also where some parameters were updated before it.
    fn of_step(&self) -> Option<&RecordError> {
        match self {
            Self::Recorded(RecordError::PartlyUpdated { source, .. }) => Some(&**source),
            Self::Recorded(error) => Some(error),
            _ => None,
        }
    }

    /// Whether some parameters are updated and others not: training cannot continue from such a model.
    pub(super) fn is_partly_updated(&self) -> bool {
        matches!(
            self,
            Self::Recorded(RecordError::PartlyUpdated { .. }) | Self::ShortAfterUpdates { .. }
        )
    }

    /// Converts the error to a shortage if it is one.
    pub(super) fn or_shortage(self) -> Self {
        if let Self::Recorded(error @ RecordError::PartlyUpdated { source, .. }) = &self
            && let Self::Short(shortage) = Self::from((**source).clone()).or_shortage()
        {
            let error = error.clone();
            return Self::ShortAfterUpdates { shortage, error };
        }
        let shortage = match self {
            Self::Recorded(RecordError::OutOfMemory(failure)) => Shortage::Failed(failure),
            Self::Recorded(RecordError::OverBudget { in_use, budget }) => Shortage::OverBudget {
                peak: in_use,
                budget,
            },
            Self::Recorded(RecordError::Infeasible {
                budget, smallest, ..
            }) => Shortage::NoRoom { budget, smallest },
            Self::Recorded(RecordError::Device(message)) if speaks_of_memory(&message) => {
                let asked = asked(&message);
                Shortage::Device { asked, message }
            }
            other => return other,
        };
        Self::Short(shortage)
    }
}
