//! The costs of a training step by stage. The symbols are those of the [module documentation](super).

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// The costs of one training step of a sequential model, by stage.
#[derive(Clone, Debug, Default, PartialEq)]
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

pub(super) fn is_absent(bytes: &Bytes) -> bool {
    *bytes == absent()
}

impl Chain {
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
        if i == 0 && !self.input_grad {
            Bytes::ZERO
        } else {
            self.activation_bytes(i)
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
