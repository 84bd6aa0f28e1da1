//! When a step updates its parameters, and what that takes.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use burn::{
    module::ParamId,
    tensor::{GradientCheckpointingStrategy, Tensor},
};
use rekindle_plan::{Bytes, OptimizerCost, Seconds};
use serde::{Deserialize, Serialize};

use super::recording::Recording;
use crate::reduce::Shards;

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
    /// Whose updates are whose, where ranks share them out: those of the others take nothing here.
    pub(super) shards: Option<Shards>,
}

impl UpdateCosts {
    /// What an update takes besides gradient and state; `turned` says that its gradient has dimensions exchanged in memory.
    pub(super) fn of(&self, parameter: ParamId, turned: bool) -> OptimizerCost {
        let one = self.each.get(&parameter).filter(|_| self.is_own(parameter));
        let [as_it_lies, exchanged] = one.copied().unwrap_or_default();
        match turned {
            true => exchanged,
            false => as_it_lies,
        }
    }

    fn is_own(&self, parameter: ParamId) -> bool {
        self.shards
            .as_ref()
            .is_none_or(|shards| shards.keeps(parameter))
    }

    /// What all updates take together; of those in the backward pass that is state alone.
    pub(super) fn together(&self, update: Update, recording: &Recording) -> OptimizerCost {
        let own = self.each.iter().filter(|(id, _)| self.is_own(**id));
        let mut sum = OptimizerCost::default();
        for (_, [one, _]) in own {
            sum.state_bytes += one.state_bytes;
            sum.step_s += one.step_s;
        }
        match update {
            Update::After => sum.temp_bytes = self.after(recording),
            Update::InBackward => sum.step_s = Seconds::ZERO,
        }
        sum
    }

    /// The most that one update takes besides gradient and state.
    pub(super) fn most_temporary(&self) -> Bytes {
        let temporary = self.each.values().flatten().map(|cost| cost.temp_bytes);
        temporary.max().unwrap_or_default()
    }

    /// What updates after the step take besides gradients and state: one comes after the other, and frees its gradient.
    fn after(&self, recording: &Recording) -> Bytes {
        let turned = recording.turned();
        let (mut freed, mut most) = (Bytes::ZERO, Bytes::ZERO);
        for parameter in &recording.parameters {
            // Ranks that share out the updates make some of them.
            let own = self.each.contains_key(&parameter.id) && self.is_own(parameter.id);
            let (Some(gradient), true) = (parameter.gradient, own) else {
                continue;
            };
            let cost = self.of(parameter.id, turned.contains(&parameter.tensor));
            most = most.max(cost.temp_bytes - freed);
            freed += Bytes(recording.tensors.value_bytes(gradient));
        }
        most
    }
}

/// What updates take, of a step that can be planned either way.
#[derive(Clone)]
pub(super) struct EitherUpdate {
    pub(super) after: UpdateCosts,
    pub(super) in_backward: UpdateCosts,
}

impl EitherUpdate {
    pub(super) fn of(&self, update: Update) -> &UpdateCosts {
        match update {
            Update::After => &self.after,
            Update::InBackward => &self.in_backward,
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
