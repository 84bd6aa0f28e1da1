//! Updated parameters as leaves of burn's graph.

use burn::tensor::{GradientCheckpointingStrategy, Tensor};

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
