//! One stage of a chain: a burn module with a known input and output type.

use burn::module::Module;

use crate::tensor_tree::TensorTree;

/// A module that can be one stage of a chain.
///
/// The same code serves the plain run and the checkpointed one: `forward` is ordinary burn code.
///
/// # Recomputing
///
/// `forward` may run twice in one training step, on the same input, with and without a graph. It must then give the same
/// output; random numbers and burn's running statistics are taken care of.
pub trait Layer: Module {
    /// The layer's input.
    type Input: TensorTree;
    /// The layer's output.
    type Output: TensorTree;

    /// Runs the layer.
    fn forward(&self, input: Self::Input) -> Self::Output;
}
