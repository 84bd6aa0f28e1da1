//! Updated parameters as leaves of burn's graph.

use burn::tensor::{GradientCheckpointingStrategy, Tensor};

/// A parameter's autodiff properties: its update is computed without autodiff, and the result becomes a leaf again.
pub struct Leaf {
    requires_grad: bool,
    /// Must be kept: burn panics in the next forward pass if a parameter and its layer's input have different
    /// strategies.
    strategy: Option<GradientCheckpointingStrategy>,
}

impl Leaf {
    /// The properties of a parameter's value.
    #[must_use]
    pub fn of<const D: usize>(parameter: &Tensor<D>) -> Self {
        Self {
            requires_grad: parameter.is_require_grad(),
            strategy: parameter.gradient_checkpointing_strategy(),
        }
    }

    /// Makes the updated value, which has no graph, a leaf of the same kind.
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
