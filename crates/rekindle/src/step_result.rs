//! What a training step, or the loss at its end, may return.

use burn::tensor::Tensor;

use crate::activation::Activation;

/// A loss of one element, alone or with anything else that is wanted from the model's output.
///
/// ```text
/// |output| cross_entropy.forward(output, targets)                        // the loss
/// |output| (cross_entropy.forward(output.clone(), targets), output)      // and the logits, for accuracy
/// ```
pub trait StepResult {
    /// What comes with the loss.
    type Auxiliary: Activation;

    /// The loss, a tensor of one element, and the rest.
    fn split(self) -> (Tensor<1>, Self::Auxiliary);
}

impl StepResult for Tensor<1> {
    type Auxiliary = ();

    fn split(self) -> (Tensor<1>, ()) {
        (self, ())
    }
}

impl<A: Activation> StepResult for (Tensor<1>, A) {
    type Auxiliary = A;

    fn split(self) -> (Tensor<1>, A) {
        self
    }
}
