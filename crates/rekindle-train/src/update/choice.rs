//! When a training updates its parameters, as settings ask for it.

use std::{fmt, str::FromStr};

use rekindle::record::Update;
use serde::{Deserialize, Serialize};

/// When a training updates its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateChoice {
    /// After the backward pass; in it where a budget is not met otherwise, and where a plan is faster so and nothing is
    /// lost by it: see [`Updates`](super::Updates).
    #[default]
    Auto,
    /// [`Update::After`].
    After,
    /// [`Update::InBackward`].
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

impl fmt::Display for UpdateChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fixed() {
            Some(update) => update.fmt(f),
            None => f.pad("auto"),
        }
    }
}

impl FromStr for UpdateChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Update::into).map_err(|_| {
                format!("unknown update `{text}`: expected auto, after or in-backward")
            }),
        }
    }
}
