//! When a training updates its parameters, and whether it can do so in the backward pass.

mod choice;

use std::fmt;

use thiserror::Error;

use super::{
    loss_scale::LossScale,
    settings::{OnNonFinite, TrainSettings},
};
pub use choice::UpdateChoice;
use rekindle::record::Update;
use rekindle_plan::{Bytes, Seconds};

/// Which updates the plans of a training may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updates {
    /// This one.
    One(Update),
    /// After the step, or in the backward pass if the budget cannot be met otherwise. A step that fails after its first
    /// update cannot be undone, so with `on_nonfinite = "stop"` a shorter time alone is not a reason for it.
    ToFit,
    /// Like [`ToFit`](Self::ToFit), and also if it is faster by more than the measurement error.
    ToFitOrFaster,
}

impl Updates {
    /// The updates of a training, planned with or without a budget.
    #[must_use]
    pub fn of(settings: &TrainSettings, budget: bool) -> Self {
        if let Some(update) = settings.update.fixed() {
            return Self::One(update);
        }
        if !budget || in_backward_refused(settings).is_some() {
            return Self::One(Update::After);
        }
        match settings.on_nonfinite {
            OnNonFinite::Continue => Self::ToFitOrFaster,
            OnNonFinite::Stop | OnNonFinite::Skip => Self::ToFit,
        }
    }
}

/// A plan with updates in the backward pass is chosen for its time only if it takes at most this share of the other
/// plan's time: repeated measurements differ by some percent.
const FASTER: f64 = 0.97;

/// A plan with one of the updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<P> {
    /// The plan.
    pub plan: P,
    /// Its step's time.
    pub step: Seconds,
    /// Whether it recomputes anything.
    pub recomputes: bool,
}

/// The chosen plan, its update, and why that is in the backward pass if it was not required.
pub type Chosen<P> = (P, Update, Option<InBackwardBecause>);

impl Updates {
    /// Chooses a plan. `plan` returns the best plan with a given update, or the smallest feasible budget if none fits;
    /// so does this function.
    ///
    /// # Errors
    ///
    /// The first of `plan`.
    pub fn choose<P, E>(
        self,
        mut plan: impl FnMut(Update) -> Result<Result<Candidate<P>, Bytes>, E>,
    ) -> Result<Result<Chosen<P>, Bytes>, E> {
        if let Self::One(update) = self {
            return Ok(plan(update)?.map(|only| (only.plan, update, None)));
        }
        let in_backward =
            |one: Candidate<P>, because| (one.plan, Update::InBackward, Some(because));
        let after = match plan(Update::After)? {
            Ok(after) => after,
            Err(smallest) => {
                let other = plan(Update::InBackward)?;
                let other = other.map(|one| in_backward(one, InBackwardBecause::Fits(smallest)));
                return Ok(other.map_err(|other| other.min(smallest)));
            }
        };
        if self == Self::ToFitOrFaster
            && after.recomputes
            && let Ok(other) = plan(Update::InBackward)?
            && other.step.0 < FASTER * after.step.0
        {
            return Ok(Ok(in_backward(
                other,
                InBackwardBecause::Faster(after.step),
            )));
        }
        Ok(Ok((after.plan, Update::After, None)))
    }
}

/// Why a plan updates in the backward pass although that was not requested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InBackwardBecause {
    /// No plan with an update after the step meets the budget: the smallest workable one is this.
    Fits(Bytes),
    /// Such a plan meets the budget too, but takes this long.
    Faster(Seconds),
}

impl fmt::Display for InBackwardBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fits(smallest) => write!(
                f,
                "with updates after the step it takes {smallest} at least"
            ),
            Self::Faster(step) => write!(f, "with updates after the step it takes {step}"),
        }
    }
}

/// The error when parameters cannot be updated in the backward pass.
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
        "`update = \"in-backward\"` frees each gradient at once, but `clip_norm` needs all of them: use `update = \"after\"`"
    )]
    ClipNorm,
    /// A step that is not finite is left out.
    #[error(
        "`update = \"in-backward\"` has updated parameters before the last gradient is there, so `on_nonfinite = \"skip\"` \
         cannot take the step back: `stop` checks each gradient before its own update, `continue` checks none"
    )]
    Skip,
    /// A step whose gradients overflow is left out.
    #[error(
        "`update = \"in-backward\"` has updated parameters before the last gradient is there, so a dynamic `loss_scale`, the default \
         of `f16`, cannot skip a step whose gradients overflow: a number or `none` skips no step"
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
        let updates = |update, on_nonfinite, accumulate, budget| {
            let settings = TrainSettings {
                update,
                on_nonfinite,
                accumulate,
                ..TrainSettings::default()
            };
            Updates::of(&settings, budget)
        };
        let auto = UpdateChoice::Auto;
        let after = Updates::One(Update::After);
        assert_eq!(updates(auto, OnNonFinite::Stop, 1, true), Updates::ToFit);
        let faster = updates(auto, OnNonFinite::Continue, 1, true);
        assert_eq!(faster, Updates::ToFitOrFaster);
        assert_eq!(updates(auto, OnNonFinite::Continue, 1, false), after);
        assert_eq!(updates(auto, OnNonFinite::Skip, 1, true), after);
        assert_eq!(updates(auto, OnNonFinite::Stop, 2, true), after);
        let asked = UpdateChoice::After;
        assert_eq!(updates(asked, OnNonFinite::Continue, 1, true), after);
        // A step whose scaled gradients overflow must be undone.
        let half = TrainSettings {
            dtype: Dtype::F16,
            ..TrainSettings::default()
        };
        assert_eq!(Updates::of(&half, true), after);
    }
}
