//! The factor by which a loss is multiplied before its backward pass, so that small gradients do not vanish in `f16`.
//!
//! `f16` has no number between 0 and `2^-24`, 6e-8. A loss that is `s` times as large has gradients that are `s` times
//! as large; the optimizer divides them by `s` in `f32` (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). `s`
//! is passed with each batch: if it were a constant in the recording, each change would require a new recording.
//!
//! A dynamic scale works like PyTorch's `GradScaler`: it starts at `2^16`, is halved when a gradient overflows, and
//! doubled after 2,000 steps without overflow. The step that overflowed is skipped. Unlike in `GradScaler`, it does not
//! fall below 1: gradients that still overflow then would do so without a scale, and `on_nonfinite` determines what
//! happens.

mod scaler;

use std::str::FromStr;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::short_form;
pub(crate) use scaler::LossScaler;

/// What the loss is multiplied by before its backward pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScale {
    /// Dynamic with `f16`, nothing with the other types.
    #[default]
    Auto,
    /// A number that falls where gradients overflow.
    Dynamic,
    /// Nothing.
    None,
    /// This number.
    #[serde(untagged)]
    Fixed(f64),
}

impl LossScale {
    pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "number", "exclusiveMinimum": 0 }, { "type": "string", "enum": ["auto", "dynamic", "none"] }],
            "x-expected": "a number above 0, \"auto\", \"dynamic\" or \"none\"",
        })
    }
}

impl FromStr for LossScale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("auto", _) => Ok(Self::Auto),
            ("dynamic", _) => Ok(Self::Dynamic),
            ("none", _) => Ok(Self::None),
            (_, Ok(scale)) if scale > 0.0 && (scale as f32).is_normal() => Ok(Self::Fixed(scale)),
            _ => Err(format!(
                "unknown loss scale `{text}`: expected dynamic, none, auto or a number above 0"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for LossScale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        short_form::number_or_word(deserializer)
    }
}
