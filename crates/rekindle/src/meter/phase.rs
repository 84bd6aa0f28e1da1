//! The phases of a training step.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The gradients of the last step are freed.
    ZeroGrad,
    /// Everything before the loss.
    Forward,
    /// The loss itself.
    Loss,
    /// Everything after the loss, recomputed forwards included.
    Backward,
    /// The update of the parameters.
    Optimizer,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ZeroGrad => "zero_grad",
            Self::Forward => "forward",
            Self::Loss => "loss",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        })
    }
}
