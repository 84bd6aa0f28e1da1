//! The two ways to run a training's steps.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What runs a training's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorKind {
    /// The step is recorded once; a program of its operations runs in its place.
    #[default]
    Recorded,
    /// A schedule runs the model's modules, stage by stage.
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

impl FromStr for ExecutorKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "recorded" => Ok(Self::Recorded),
            "modules" => Ok(Self::Modules),
            _ => Err(format!(
                "unknown executor {text:?}; expected recorded or modules"
            )),
        }
    }
}
