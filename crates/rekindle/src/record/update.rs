//! When a step updates its parameters.

use std::fmt;

use rekindle_plan::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// When a training step updates its parameters.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Update {
    /// When the step is done: it hands out all gradients.
    #[default]
    After,
    /// Each as soon as its gradient is complete and nothing that is still to run reads its old value. The gradient is
    /// freed at once.
    InBackward,
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::After => "after",
            Self::InBackward => "in-backward",
        })
    }
}

/// Which updates the plans of a step may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updates {
    /// This one.
    One(Update),
    /// After the step, or in the backward pass if the budget cannot be met otherwise. A step that fails after its first
    /// update cannot be undone, so where steps may be undone, a shorter time alone is not a reason for it.
    ToFit,
    /// Like [`ToFit`](Self::ToFit), and also if it is faster by more than the measurement error.
    ToFitOrFaster,
}

impl Updates {
    /// Each of them, in the order in which they are tried.
    #[must_use]
    pub fn each(self) -> &'static [Update] {
        match self {
            Self::One(Update::After) => &[Update::After],
            Self::One(Update::InBackward) => &[Update::InBackward],
            Self::ToFit | Self::ToFitOrFaster => &[Update::After, Update::InBackward],
        }
    }
}

/// Why a plan updates in the backward pass although that was not requested.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
