//! When a step updates its parameters, and what that takes.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use burn::{
    module::ParamId,
    tensor::{GradientCheckpointingStrategy, Tensor},
};
use rekindle_plan::{Bytes, OptimizerCost};
use serde::{Deserialize, Serialize};

use super::recording::Recording;

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

impl FromStr for Update {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "after" => Ok(Self::After),
            "in-backward" => Ok(Self::InBackward),
            _ => Err(format!(
                "unknown update {text:?}; expected after or in-backward"
            )),
        }
    }
}

/// What the updates of parameters take.
#[derive(Clone, Default)]
pub(super) struct UpdateCosts {
    /// That of each: with a gradient that lies in memory as the parameter does, and with one whose first two dimensions
    /// are exchanged there.
    pub(super) each: Arc<HashMap<ParamId, [OptimizerCost; 2]>>,
    /// Whether the first update leaves state in the storage of gradients, which may be larger than their numbers.
    pub(super) keeps_storage: bool,
}

impl UpdateCosts {
    /// What an update takes besides gradient and state; `turned` says that its gradient has dimensions exchanged in memory.
    pub(super) fn of(&self, parameter: ParamId, turned: bool) -> OptimizerCost {
        let [as_it_lies, exchanged] = self.each.get(&parameter).copied().unwrap_or_default();
        match turned {
            true => exchanged,
            false => as_it_lies,
        }
    }

    /// What updates after the step take besides gradients and state: one comes after the other, and frees its gradient.
    pub(super) fn after(&self, recording: &Recording) -> Bytes {
        let turned = recording.turned();
        let (mut freed, mut most) = (Bytes::ZERO, Bytes::ZERO);
        for parameter in &recording.parameters {
            // Ranks that share out the updates make some of them.
            let (Some(gradient), true) =
                (parameter.gradient, self.each.contains_key(&parameter.id))
            else {
                continue;
            };
            let cost = self.of(parameter.id, turned.contains(&parameter.tensor));
            most = most.max(cost.temp_bytes - freed);
            freed += Bytes(recording.tensors.value_bytes(gradient));
        }
        most
    }
}

/// What the optimizer takes, of a step that can be planned either way.
#[derive(Debug, Clone, Copy)]
pub(super) struct EitherUpdate {
    pub(super) after: OptimizerCost,
    pub(super) in_backward: OptimizerCost,
}

impl EitherUpdate {
    pub(super) fn of(&self, update: Update) -> OptimizerCost {
        match update {
            Update::After => self.after,
            Update::InBackward => self.in_backward,
        }
    }
}

/// What a parameter is in autodiff: its update is computed without, and becomes a leaf again.
pub struct Leaf {
    requires_grad: bool,
    /// A parameter recorded in another way than its layer's input would be refused by the next forward.
    strategy: Option<GradientCheckpointingStrategy>,
}

impl Leaf {
    /// That of a value which has no gradient.
    pub(super) fn untrained() -> Self {
        Self {
            requires_grad: false,
            strategy: None,
        }
    }

    /// That of a parameter's value.
    #[must_use]
    pub fn of<const D: usize>(parameter: &Tensor<D>) -> Self {
        Self {
            requires_grad: parameter.is_require_grad(),
            strategy: parameter.gradient_checkpointing_strategy(),
        }
    }

    /// The updated value, which has no graph, as a leaf of the same kind.
    #[must_use]
    pub fn again<const D: usize>(&self, updated: Tensor<D>) -> Tensor<D> {
        let Some(strategy) = self.strategy else {
            return updated;
        };
        updated
            .autodiff()
            .with_gradient_checkpointing_strategy(strategy)
            .set_require_grad(self.requires_grad)
    }
}
