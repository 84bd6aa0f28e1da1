//! The chain: the costs of each stage of a model, measured or estimated.
//!
//! Stage i = 0..L-1 maps a_i to a_{i+1}; the loss counts as stage L. In the formulas of this crate, x_i is the size of
//! a_i, X_{i+1} the bytes that a tracked forward of stage i keeps (with its output, without its input), f_i and F_i the
//! temporary bytes of an untracked and a tracked forward, b_i those of the backward pass, g_i the bytes of the
//! parameter gradients, and y_i the size of the gradient of a_i: y_i = x_i, but y_0 = 0 unless `input_grad`.
//!
//! The file format is JSON, read by [`Chain::from_json`] and written by [`Chain::to_json`].

mod file;

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::seconds::Seconds;

pub use file::FORMAT;

/// The sum of all sizes of a chain stays at or below this, so that no sum of live sizes can overflow 64 bits.
const MOST_BYTES: Bytes = Bytes(1 << 60);

/// The costs of one training step of a sequential model, by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(with = "file::ChainFile"))]
pub struct Chain {
    /// x_0: the size of the input, which is always held.
    pub input_bytes: Bytes,
    /// Whether the backward pass of stage 0 also computes the gradient of the input.
    pub input_grad: bool,
    /// Bytes always held besides the input: parameters, targets, the runtime's own memory.
    pub fixed_bytes: Bytes,
    /// The stages, first to last; at least one.
    pub stages: Vec<Stage>,
    /// The loss.
    pub loss: LossCost,
    /// The optimizer.
    pub optimizer: OptimizerCost,
}

/// What one stage costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name, for people.
    pub name: String,
    /// Time of one forward.
    pub forward_s: Seconds,
    /// Time of its backward.
    pub backward_s: Seconds,
    /// Bytes of the output: x_{i+1}.
    pub output_bytes: Bytes,
    /// Bytes that a tracked forward keeps for the backward, the output included, the input not: X_{i+1}.
    pub saved_bytes: Bytes,
    /// Bytes held for a while during an untracked forward: f_i.
    pub forward_temp_bytes: Bytes,
    /// Bytes held for a while during a tracked forward: F_i; as `forward_temp_bytes` when absent.
    /// Plans count no less than an untracked forward takes.
    #[serde(default = "absent", skip_serializing_if = "is_absent")]
    pub tracked_temp_bytes: Bytes,
    /// Bytes held for a while during the backward: b_i.
    pub backward_temp_bytes: Bytes,
    /// Bytes of parameters, which `fixed_bytes` includes; 0 when absent.
    #[serde(default)]
    pub param_bytes: Bytes,
    /// Bytes of parameter gradients that the backward leaves until the optimizer: g_i; 0 when absent.
    #[serde(default)]
    pub grad_bytes: Bytes,
}

/// What the loss costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LossCost {
    /// Time of its forward.
    pub forward_s: Seconds,
    /// Time of its backward.
    pub backward_s: Seconds,
    /// Bytes held for a while during the forward.
    pub forward_temp_bytes: Bytes,
    /// Bytes held for a while during the backward, without the gradient of the last output.
    pub backward_temp_bytes: Bytes,
}

/// What the optimizer costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OptimizerCost {
    /// Time of its step.
    pub step_s: Seconds,
    /// Bytes held for a while during its step.
    pub temp_bytes: Bytes,
    /// Bytes of its state, counted from the first step on.
    pub state_bytes: Bytes,
}

/// Marks a value that the file omits: larger than any valid size.
fn absent() -> Bytes {
    Bytes::MAX
}

fn is_absent(bytes: &Bytes) -> bool {
    *bytes == absent()
}

/// Why a chain or its file is invalid: the value, and its stage and field or its line and column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChainError(pub String);

impl Stage {
    /// Its times, with the names of the fields.
    fn times(&self) -> [(&'static str, Seconds); 2] {
        [
            ("forward_s", self.forward_s),
            ("backward_s", self.backward_s),
        ]
    }

    /// Its sizes, with the names of the fields.
    pub(crate) fn sizes(&self) -> [(&'static str, Bytes); 7] {
        [
            ("output_bytes", self.output_bytes),
            ("saved_bytes", self.saved_bytes),
            ("forward_temp_bytes", self.forward_temp_bytes),
            ("tracked_temp_bytes", self.tracked_temp_bytes),
            ("backward_temp_bytes", self.backward_temp_bytes),
            ("param_bytes", self.param_bytes),
            ("grad_bytes", self.grad_bytes),
        ]
    }
}

impl LossCost {
    /// The loss as a stage, which keeps nothing.
    pub(crate) fn stage(&self) -> Stage {
        Stage {
            forward_s: self.forward_s,
            backward_s: self.backward_s,
            forward_temp_bytes: self.forward_temp_bytes,
            backward_temp_bytes: self.backward_temp_bytes,
            ..Stage::default()
        }
    }
}

impl Chain {
    /// Checks every value: at least one stage, times finite and not negative, saved bytes at least the output's, and
    /// sums that cannot overflow.
    ///
    /// # Errors
    /// The first invalid value, with its stage and field.
    pub fn validate(&self) -> Result<(), ChainError> {
        let invalid = |said: &str| Err(ChainError(said.to_owned()));
        if self.stages.is_empty() {
            return invalid("the chain has no stages");
        }
        let (mut all_times, mut all_sizes) = (Seconds::ZERO, Bytes::ZERO);
        let mut check = |place: &dyn Display, times: &[(_, Seconds)], sizes: &[(_, Bytes)]| {
            let wrong = |field: &str, value: &dyn Display, expected: &str| {
                invalid(&format!("{place}: {field} is {value}, expected {expected}"))
            };
            for &(field, time) in times {
                if !time.0.is_finite() || time.0 < 0.0 {
                    return wrong(field, &time.0, "a finite number of seconds, 0 or more");
                }
                all_times += time;
            }
            for &(field, size) in sizes {
                if size > MOST_BYTES {
                    return wrong(field, &size.0, "a whole number of bytes from 0 to 2^60");
                }
                all_sizes += size;
            }
            Ok(())
        };
        let sizes = [
            ("input_bytes", self.input_bytes),
            ("fixed_bytes", self.fixed_bytes),
        ];
        check(&"chain", &[], &sizes)?;
        for (index, stage) in self.stages.iter().enumerate() {
            let place = format_args!("stage {index} ({:?})", stage.name);
            // It could rewrite what a terminal shows.
            if stage.name.chars().any(char::is_control) {
                return invalid(&format!("{place}: the name holds a control character"));
            }
            check(&place, &stage.times(), &stage.sizes())?;
            let (saved, output) = (stage.saved_bytes.0, stage.output_bytes.0);
            if saved < output {
                return invalid(&format!(
                    "{place}: saved_bytes is {saved}, less than the output_bytes of {output} that it includes"
                ));
            }
        }
        let (loss, optimizer) = (self.loss.stage(), &self.optimizer);
        check(&"loss", &loss.times(), &loss.sizes())?;
        let sizes = [
            ("temp_bytes", optimizer.temp_bytes),
            ("state_bytes", optimizer.state_bytes),
        ];
        check(&"optimizer", &[("step_s", optimizer.step_s)], &sizes)?;
        if all_sizes > MOST_BYTES {
            return invalid("the sizes of the chain add up to more than 2^60 bytes");
        }
        if !all_times.0.is_finite() {
            return invalid("the times of the chain add up to infinity");
        }
        Ok(())
    }

    /// x_i: the size of a_i, for i from 0 (the input) to the number of stages (the last output).
    ///
    /// # Panics
    /// If i is larger than the number of stages.
    pub fn activation_bytes(&self, i: usize) -> Bytes {
        match i.checked_sub(1) {
            Some(before) => self.stages[before].output_bytes,
            None => self.input_bytes,
        }
    }

    /// y_i: the size of the gradient of a_i; zero for the input unless `input_grad`.
    ///
    /// # Panics
    /// If i is larger than the number of stages.
    pub fn gradient_bytes(&self, i: usize) -> Bytes {
        match i {
            0 if !self.input_grad => Bytes::ZERO,
            _ => self.activation_bytes(i),
        }
    }

    /// Bytes held at every moment: fixed bytes, optimizer state and input.
    pub fn resident_bytes(&self) -> Bytes {
        self.fixed_bytes + self.optimizer.state_bytes + self.input_bytes
    }

    /// Bytes of all parameter gradients.
    pub fn grad_bytes(&self) -> Bytes {
        self.stages.iter().map(|stage| stage.grad_bytes).sum()
    }

    /// The peak of the optimizer's step, which no schedule can lower: the bytes that are always held, y_0, all
    /// parameter gradients and the optimizer's temporary bytes.
    pub fn optimizer_peak(&self) -> Bytes {
        self.resident_bytes()
            + self.gradient_bytes(0)
            + self.grad_bytes()
            + self.optimizer.temp_bytes
    }
}
