//! The two ways to run a training's steps.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What runs a training's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorKind {
    /// Single operations of a step that is recorded once.
    #[default]
    Recorded,
    /// The model's modules, stage by stage.
    Modules,
}

impl fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Recorded => "recorded",
            Self::Modules => "modules",
        })
    }
}
