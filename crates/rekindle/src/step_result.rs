//! The return value of a training step, or of its loss function.

use burn::tensor::Tensor;

use crate::tensor_tree::TensorTree;

/// A loss of one element, alone or with auxiliary output from the model.
///
/// ```text
/// |output| cross_entropy.forward(output, targets)                        // the loss
/// |output| (cross_entropy.forward(output.clone(), targets), output)      // and the logits, for accuracy
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a loss",
    note = "a step returns a `Tensor<1>` of one element (`.mean()` makes one), or a pair such as `(loss, logits)`"
)]
pub trait StepResult {
    /// The auxiliary output.
    type Auxiliary: TensorTree;

    /// Splits into the loss, a tensor of one element, and the auxiliary output.
    fn split(self) -> (Tensor<1>, Self::Auxiliary);

    /// The result that [splits](Self::split) into these.
    fn join(loss: Tensor<1>, auxiliary: Self::Auxiliary) -> Self;
}

impl StepResult for Tensor<1> {
    type Auxiliary = ();

    fn split(self) -> (Tensor<1>, ()) {
        (self, ())
    }

    fn join(loss: Self, (): ()) -> Self {
        loss
    }
}

impl<A: TensorTree> StepResult for (Tensor<1>, A) {
    type Auxiliary = A;

    fn split(self) -> (Tensor<1>, A) {
        self
    }

    fn join(loss: Tensor<1>, auxiliary: A) -> Self {
        (loss, auxiliary)
    }
}
