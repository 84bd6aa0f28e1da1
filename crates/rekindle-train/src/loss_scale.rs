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

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use scaler::LossScaler;

/// What the loss is multiplied by before its backward pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "snake_case",
    expecting = "expected a number above 0, \"auto\", \"dynamic\" or \"none\""
)]
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
