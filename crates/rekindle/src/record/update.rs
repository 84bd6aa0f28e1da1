//! When a step updates its parameters.

use std::fmt;

use rekindle_plan::Bytes;
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
    /// After the step, or in the backward pass if the budget cannot be met otherwise: a step that fails after its first
    /// update cannot be undone.
    ToFit,
}

impl Updates {
    /// Each of them, in the order in which they are tried.
    #[must_use]
    pub fn each(self) -> &'static [Update] {
        match self {
            Self::One(Update::After) => &[Update::After],
            Self::One(Update::InBackward) => &[Update::InBackward],
            Self::ToFit => &[Update::After, Update::InBackward],
        }
    }
}

/// Why a plan updates in the backward pass although that was not requested: no plan with an update after the step meets the
/// budget.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InBackwardBecause {
    /// The smallest budget that such a plan would do with.
    #[serde(rename = "fits")]
    pub smallest_bytes: Bytes,
}

impl fmt::Display for InBackwardBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let smallest = self.smallest_bytes;
        write!(
            f,
            "with updates after the step it takes {smallest} at least"
        )
    }
}
