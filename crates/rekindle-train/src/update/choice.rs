//! When a training updates its parameters, as settings ask for it.

use rekindle::record::Update;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a training updates its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateChoice {
    /// After the backward pass; in it where a budget is not met otherwise.
    #[default]
    Auto,
    /// After the backward pass.
    After,
    /// In the backward pass, each parameter as soon as its gradient is complete.
    InBackward,
}

impl UpdateChoice {
    /// What is asked for, if anything is.
    #[must_use]
    pub fn fixed(self) -> Option<Update> {
        match self {
            Self::Auto => None,
            Self::After => Some(Update::After),
            Self::InBackward => Some(Update::InBackward),
        }
    }
}

impl From<Update> for UpdateChoice {
    fn from(update: Update) -> Self {
        match update {
            Update::After => Self::After,
            Update::InBackward => Self::InBackward,
        }
    }
}
