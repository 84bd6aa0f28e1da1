//! One stage of a chain: a burn module with a known input and output type.

use burn::module::Module;

use crate::tensor_tree::TensorTree;

/// A module that can be one stage of a chain.
///
/// The same code serves the plain run and the checkpointed one: `forward` is ordinary burn code.
///
/// # Recomputing
///
/// `forward` may run several times in one training step, always on the same input, with and without a graph. It must
/// then give the same output. The executor handles random numbers (see [`draws_random`](Self::draws_random)) and burn's
/// running statistics, which are updated once per step however often the stage runs.
pub trait Layer: Module {
    /// The layer's input.
    type Input: TensorTree;
    /// The layer's output.
    type Output: TensorTree;

    /// Runs the layer.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// Whether `forward` draws from the device's random number generator while training.
    ///
    /// If so, the executor seeds the generator before every run of the layer, so that a recompute draws the same
    /// numbers. On GPU backends, seeding waits for the queue to drain, so layers that never draw should return `false`.
    /// The default, `true`, is the safe choice.
    fn draws_random(&self) -> bool {
        true
    }

    /// Whether the layer may also be recorded by burn's balanced strategy, which keeps fewer bytes and takes longer
    /// (alternative 1 of its stage). Planners choose it where it is worth the time.
    ///
    /// Return `false` if `forward` combines its input with autodiff tensors that are neither parameters nor part of the
    /// input: burn panics when operands of one operation have different strategies. Tensors of a device without
    /// autodiff are fine.
    fn has_balanced(&self) -> bool {
        true
    }
}
