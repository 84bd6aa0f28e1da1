//! One stage of a chain: a burn module with a known input and output type.

use burn::module::Module;

use crate::activation::Activation;

/// A module that can be one stage of a chain.
///
/// The same code serves the plain run and the checkpointed one: `forward` is ordinary burn code.
///
/// # Recomputing
///
/// `forward` may run several times in one training step, always on the same input, with and without a graph. It must
/// then give the same output. Random numbers are taken care of (see [`draws_random`](Self::draws_random)); so are
/// burn's running statistics, which move once a step however often the stage runs.
pub trait Layer: Module {
    /// What the layer takes.
    type Input: Activation;
    /// What the layer gives.
    type Output: Activation;

    /// Runs the layer.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// Whether `forward` draws from the device's random number generator while training.
    ///
    /// Where it does, the executor seeds the generator before every run of the layer, so that a recompute draws the
    /// same numbers. A seed call costs a drain of the queue on GPU backends, so layers that never draw should say
    /// `false`. The default is the safe one.
    fn draws_random(&self) -> bool {
        true
    }

    /// Whether the layer may be recorded by burn's balanced strategy as well, which keeps fewer bytes and takes longer
    /// (alternative 1 of its stage). Planners choose it where it pays.
    ///
    /// Say `false` where `forward` combines its input with autodiff tensors that are neither parameters nor part of the
    /// input: burn panics when operands of one operation have different strategies. Tensors of a device without
    /// autodiff are fine.
    fn has_balanced(&self) -> bool {
        true
    }
}
