//! What a loss closure may return.

use burn::tensor::Tensor;

use crate::activation::Activation;

/// A loss of shape `[1]`, alone or with anything else that is wanted from the model's output.
///
/// ```text
/// |output| cross_entropy.forward(output, targets)                        // the loss
/// |output| (cross_entropy.forward(output.clone(), targets), output)      // and the logits, for accuracy
/// ```
pub trait StepLoss {
    /// What comes with the loss.
    type Extra: Activation;

    /// The loss and the rest.
    fn split(self) -> (Tensor<1>, Self::Extra);
}

impl StepLoss for Tensor<1> {
    type Extra = ();

    fn split(self) -> (Tensor<1>, ()) {
        (self, ())
    }
}

impl<T: Activation> StepLoss for (Tensor<1>, T) {
    type Extra = T;

    fn split(self) -> (Tensor<1>, T) {
        self
    }
}
