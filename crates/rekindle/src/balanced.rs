//! A second way to record a stage: burn's balanced strategy, operation by operation.
//!
//! It keeps the results of matrix products and convolutions and recomputes element-wise operations in the backward pass
//! instead of keeping their inputs. It saves memory in stages with several element-wise operations (normalisations,
//! GELU, residual sums), and none in a linear layer alone. Schedules call it alternative 1 of a stage. Output and
//! gradients are bit for bit the same.
//!
//! In burn the strategy is a property of each tensor, and operands of one operation must agree on it. So the executor
//! runs a copy of the layer whose parameters are the same leaves with the balanced strategy, and then restores the
//! model's strategy on the output.

use burn::{
    module::{ModuleMapper, Param},
    tensor::{Bool, GradientCheckpointingStrategy as Strategy, Int, Tensor, kind::Autodiff},
};

use crate::{
    layer::Layer,
    tensor_tree::{TensorMapper, TensorTree},
};

/// Part of burn's panic message when tensors of two strategies meet in one operation.
pub(crate) const MISMATCH: &str = "strategy mismatch";

/// Runs `layer` on `input`, recorded by the balanced strategy. Gradients arrive at the layer's own leaves, and the
/// layer's own statistics are updated.
pub(crate) fn run<L: Layer>(layer: &L, input: L::Input) -> L::Output {
    let mut balanced = SetStrategy::new(Strategy::Balanced);
    let copy = layer.clone().map(&mut balanced);
    let output = copy.forward(input.map(&mut balanced));
    let before = balanced.found.unwrap_or_default();
    if balanced.statistics {
        // Clones share statistics. An update from this thread is pending until the statistics are next read.
        drop(copy.valid());
        drop(copy.map(&mut SetStrategy::new(before)));
    }
    output.map(&mut SetStrategy::new(before))
}

/// Sets the strategy of tensors and records the previous one.
pub(crate) struct SetStrategy {
    strategy: Strategy,
    found: Option<Strategy>,
    /// Whether any tensor requires no gradient, as running statistics do.
    statistics: bool,
}

impl SetStrategy {
    pub(crate) fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            found: None,
            statistics: false,
        }
    }

    fn set<const D: usize, K: Autodiff>(&mut self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        match tensor.gradient_checkpointing_strategy() {
            None => tensor,
            Some(found) => {
                self.found = self.found.or(Some(found));
                tensor.with_gradient_checkpointing_strategy(self.strategy)
            }
        }
    }
}

impl ModuleMapper for SetStrategy {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.statistics |= !param.is_require_grad();
        param.map(|tensor| self.set(tensor))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| self.set(tensor))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        param.map(|tensor| self.set(tensor))
    }
}

impl TensorMapper for SetStrategy {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.set(tensor)
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.set(tensor)
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.set(tensor)
    }
}
