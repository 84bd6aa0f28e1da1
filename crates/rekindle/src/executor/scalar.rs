//! What a loss closure may return.

use burn::tensor::{Tensor, backend::Backend};

use crate::activation::Activation;

/// A loss of shape `[1]`, alone or with anything else that is wanted from the model's output.
///
/// ```text
/// |output| cross_entropy.forward(output, targets)                        // the loss
/// |output| (cross_entropy.forward(output.clone(), targets), output)      // and the logits, for accuracy
/// ```
pub trait StepLoss<B: Backend> {
    /// What comes with the loss.
    type Extra: Activation<B>;

    /// The loss and the rest.
    fn split(self) -> (Tensor<B, 1>, Self::Extra);
}

impl<B: Backend> StepLoss<B> for Tensor<B, 1> {
    type Extra = ();

    fn split(self) -> (Tensor<B, 1>, ()) {
        (self, ())
    }
}

impl<B: Backend, T: Activation<B>> StepLoss<B> for (Tensor<B, 1>, T) {
    type Extra = T;

    fn split(self) -> (Tensor<B, 1>, T) {
        self
    }
}
