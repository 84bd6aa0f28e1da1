//! One stage of a chain: a burn module with a known input and output type.

use burn::{module::Module, tensor::backend::Backend};

use crate::{activation::Activation, backend::CheckpointBackend};

/// A module that can be one stage of a chain.
///
/// The same code serves the plain run and the checkpointed one: `forward` is ordinary burn code.
///
/// # Recomputing
///
/// `forward` may run several times in one training step, always on the same input. It must then give the same
/// output. Random numbers are taken care of (see [`draws_random`](Self::draws_random)); so are burn's running
/// statistics, which move once a step however often the stage runs.
pub trait Layer<B: Backend>: Module<B> {
    /// What the layer takes.
    type Input: Activation<B>;
    /// What the layer gives.
    type Output: Activation<B>;

    /// Runs the layer.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// Whether `forward` draws from the backend's random number generator while training.
    ///
    /// Where it does, the executor seeds the generator before every run of the layer, so that a recompute draws the
    /// same numbers. A seed call costs a drain of the queue on GPU backends, so layers that never draw should say
    /// `false`. The default is the safe one.
    fn draws_random(&self) -> bool {
        true
    }

    /// Whether [`forward_balanced`](Self::forward_balanced) is there: whether the layer offers schedules a second way
    /// to be tracked. Planners choose it where it pays.
    fn has_balanced(&self) -> bool {
        false
    }

    /// Runs the layer with its graph recorded by burn's balanced strategy, which keeps fewer bytes and takes longer.
    /// The output and all gradients are those of [`forward`](Self::forward). [`balanced`](crate::balanced) shows how
    /// a layer implements it.
    fn forward_balanced(&self, input: Self::Input) -> Self::Output
    where
        B: CheckpointBackend,
    {
        self.forward(input)
    }
}
