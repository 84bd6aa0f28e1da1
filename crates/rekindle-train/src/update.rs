//! Which trainings can update their parameters in the backward pass.

use thiserror::Error;

use super::{
    executor_kind::ExecutorKind,
    settings::{Clip, OnNonFinite, TrainSettings},
};
use rekindle::record::Update;

/// Why parameters cannot be updated in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UpdateRefused {
    /// Gradients of a batch's parts are added up first.
    #[error(
        "`update = \"in-backward\"` frees each gradient at once, but `accumulate` adds up those of {parts} parts"
    )]
    Accumulate {
        /// The parts.
        parts: usize,
    },
    /// All gradients are clipped together.
    #[error(
        "`update = \"in-backward\"` frees each gradient at once, but `clip` by `global_norm` needs all of them: `norm` and \
         `value` clip each by itself"
    )]
    GlobalNorm,
    /// A step that is not finite is left out.
    #[error(
        "`update = \"in-backward\"` has updated parameters before the last gradient is there, so `on_nonfinite = \"skip\"` \
         cannot take the step back: `stop` checks each gradient before its own update, `continue` checks none"
    )]
    Skip,
    /// The executor of modules hands out all gradients.
    #[error("`update = \"in-backward\"` is what recorded steps do: leave `--executor modules` out")]
    Modules,
}

/// Checks that a training can update when its settings say.
///
/// # Errors
///
/// Why it cannot.
pub fn check_update(settings: &TrainSettings, executor: ExecutorKind) -> Result<(), UpdateRefused> {
    if settings.update == Update::After {
        return Ok(());
    }
    if settings.accumulate > 1 {
        return Err(UpdateRefused::Accumulate {
            parts: settings.accumulate,
        });
    }
    if matches!(settings.clip, Some(Clip::GlobalNorm { .. })) {
        return Err(UpdateRefused::GlobalNorm);
    }
    if settings.on_nonfinite == OnNonFinite::Skip {
        return Err(UpdateRefused::Skip);
    }
    match executor {
        ExecutorKind::Recorded => Ok(()),
        ExecutorKind::Modules => Err(UpdateRefused::Modules),
    }
}
