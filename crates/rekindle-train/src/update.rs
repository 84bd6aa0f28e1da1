//! When a training updates its parameters, and whether it can do so in the backward pass.

use super::{
    run_error::RunError,
    settings::{LossScale, OnNonFinite, TrainSettings, UpdateChoice},
};
use rekindle::record::Update;
pub use rekindle::record::driver::Updates;

/// Which updates the plans of a training may have, within a budget or without one.
#[must_use]
pub fn updates(settings: &TrainSettings, within_a_budget: bool) -> Updates {
    if let Some(update) = settings.update.fixed() {
        return Updates::One(update);
    }
    if !within_a_budget || in_backward_refused(settings).is_some() {
        return Updates::One(Update::After);
    }
    Updates::ToFit
}

/// Checks that a training can update its parameters as configured.
///
/// # Errors
///
/// Why it cannot.
pub(super) fn check_update(settings: &TrainSettings) -> Result<(), RunError> {
    match in_backward_refused(settings) {
        Some(why) if settings.update == UpdateChoice::InBackward => Err(RunError::Refused(
            format!("{why}: it needs `--update after`"),
        )),
        _ => Ok(()),
    }
}

/// Why a training cannot update its parameters in the backward pass, if it cannot.
fn in_backward_refused(settings: &TrainSettings) -> Option<String> {
    let parts = settings.parts();
    if parts > 1 {
        return Some(format!(
            "`accumulate = {parts}` adds up gradients of {parts} parts"
        ));
    }
    if settings.clip_norm.is_some() {
        return Some("`clip_norm` needs all gradients at once".into());
    }
    if settings.on_nonfinite == OnNonFinite::Skip {
        return Some("`on_nonfinite = \"skip\"` undoes a whole step".into());
    }
    if settings.loss_scale() == LossScale::Dynamic {
        return Some("a dynamic `loss_scale`, the default of `f16`, undoes whole steps".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Accumulate;
    use rekindle::dtype::Dtype;

    #[test]
    fn a_budget_is_a_reason_only_where_no_step_need_be_taken_back() {
        let allowed = |update, on_nonfinite, accumulate, budget| {
            let settings = TrainSettings {
                update,
                on_nonfinite,
                accumulate: Accumulate::Parts(accumulate),
                ..TrainSettings::default()
            };
            updates(&settings, budget)
        };
        let auto = UpdateChoice::Auto;
        let after = Updates::One(Update::After);
        assert_eq!(allowed(auto, OnNonFinite::Stop, 1, true), Updates::ToFit);
        let to_fit = allowed(auto, OnNonFinite::Continue, 1, true);
        assert_eq!(to_fit, Updates::ToFit);
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
