//! When a step updates its parameters, and what that takes.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use burn::{
    module::ParamId,
    tensor::{GradientCheckpointingStrategy, Tensor},
};
use rekindle_plan::OptimizerCost;
use serde::{Deserialize, Serialize};

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

/// What the update of each parameter takes, where it was measured: with a gradient that lies in memory as the parameter
/// does, and with one whose first two dimensions are exchanged there.
pub(super) type UpdateCosts = Arc<HashMap<ParamId, [OptimizerCost; 2]>>;

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
