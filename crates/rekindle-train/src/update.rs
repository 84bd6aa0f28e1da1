//! When a training updates its parameters, and whether it can do so in the backward pass.

mod choice;

use thiserror::Error;

use super::{
    loss_scale::LossScale,
    settings::{OnNonFinite, TrainSettings},
};
pub use choice::UpdateChoice;
use rekindle::record::Update;
pub use rekindle::record::Updates;

/// Which updates the plans of a training may have, within a budget or without one. A step that fails after its first update
/// cannot be undone, so with `on_nonfinite = "stop"` a shorter time alone is not a reason for updates in the backward pass.
#[must_use]
pub fn updates(settings: &TrainSettings, within_a_budget: bool) -> Updates {
    if let Some(update) = settings.update.fixed() {
        return Updates::One(update);
    }
    if !within_a_budget || in_backward_refused(settings).is_some() {
        return Updates::One(Update::After);
    }
    match settings.on_nonfinite {
        OnNonFinite::Continue => Updates::ToFitOrFaster,
        OnNonFinite::Stop | OnNonFinite::Skip => Updates::ToFit,
    }
}

/// The error when parameters cannot be updated in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UpdateRefused {
    /// Gradients of a batch's parts are added up first.
    #[error("`accumulate = {parts}` adds up gradients of {parts} parts: it needs `--update after`")]
    Accumulate {
        /// The parts.
        parts: usize,
    },
    /// All gradients are clipped together.
    #[error("`clip_norm` needs all gradients at once: it needs `--update after`")]
    ClipNorm,
    /// A step that is not finite is left out.
    #[error("`on_nonfinite = \"skip\"` undoes a whole step: it needs `--update after`")]
    Skip,
    /// A step whose gradients overflow is left out.
    #[error(
        "a dynamic `loss_scale`, the default of `f16`, undoes whole steps: it needs `--update after`"
    )]
    LossScale,
}

/// Checks that a training can update its parameters as configured.
///
/// # Errors
///
/// Why it cannot.
pub fn check_update(settings: &TrainSettings) -> Result<(), UpdateRefused> {
    match in_backward_refused(settings) {
        Some(refused) if settings.update == UpdateChoice::InBackward => Err(refused),
        _ => Ok(()),
    }
}

/// Why a training cannot update its parameters in the backward pass, if it cannot.
#[must_use]
pub fn in_backward_refused(settings: &TrainSettings) -> Option<UpdateRefused> {
    if settings.accumulate > 1 {
        return Some(UpdateRefused::Accumulate {
            parts: settings.accumulate,
        });
    }
    if settings.clip_norm.is_some() {
        return Some(UpdateRefused::ClipNorm);
    }
    if settings.on_nonfinite == OnNonFinite::Skip {
        return Some(UpdateRefused::Skip);
    }
    if settings.loss_scale() == LossScale::Dynamic {
        return Some(UpdateRefused::LossScale);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle::dtype::Dtype;

    #[test]
    fn time_alone_is_a_reason_only_where_no_step_need_be_taken_back() {
        let allowed = |update, on_nonfinite, accumulate, budget| {
            let settings = TrainSettings {
                update,
                on_nonfinite,
                accumulate,
                ..TrainSettings::default()
            };
            updates(&settings, budget)
        };
        let auto = UpdateChoice::Auto;
        let after = Updates::One(Update::After);
        assert_eq!(allowed(auto, OnNonFinite::Stop, 1, true), Updates::ToFit);
        let faster = allowed(auto, OnNonFinite::Continue, 1, true);
        assert_eq!(faster, Updates::ToFitOrFaster);
        assert_eq!(allowed(auto, OnNonFinite::Continue, 1, false), after);
        assert_eq!(allowed(auto, OnNonFinite::Skip, 1, true), after);
        assert_eq!(allowed(auto, OnNonFinite::Stop, 2, true), after);
        let asked = UpdateChoice::After;
        assert_eq!(allowed(asked, OnNonFinite::Continue, 1, true), after);
        // A step whose scaled gradients overflow must be undone.
        let half = TrainSettings {
            dtype: Dtype::F16,
            ..TrainSettings::default()
        };
        assert_eq!(updates(&half, true), after);
    }
}
