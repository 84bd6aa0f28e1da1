//! Losses and counts of correct predictions, on the output of a model: `[batch, values]`, or `[batch, length, classes]`
//! with a class for each token.

use burn::{
    nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction},
    tensor::{Int, Tensor},
};

use crate::model::value::Value;
use rekindle::{
    dtype::Dtype,
    tensor_tree::{TensorMapper, TensorTree, TensorVisitor},
};

/// The targets on the device.
#[derive(Debug, Clone)]
pub enum TargetTensor {
    /// Class ids, one for each row of the output: shape `[batch]` or `[batch x length]`.
    Classes(Tensor<1, Int>),
    /// Numbers, shape `[batch, values]`.
    Values(Tensor<2>),
}

impl TensorTree for TargetTensor {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        match self {
            Self::Classes(classes) => visitor.int(classes),
            Self::Values(values) => visitor.float(values),
        }
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        match self {
            Self::Classes(classes) => Self::Classes(mapper.int(classes)),
            Self::Values(values) => Self::Values(mapper.float(values)),
        }
    }
}

/// The number of correctly classified rows, shape `[1]`, if there are classes.
pub(super) type Correct = Option<Tensor<1, Int>>;

impl TargetTensor {
    /// The mean loss of a model's output, shape `[1]`, and the number of correct predictions: cross entropy for classes,
    /// squared error for values.
    pub(super) fn compared(&self, output: Value) -> (Tensor<1>, Correct) {
        match (output, self) {
            (Value::Deferred(projection), Self::Classes(classes)) => {
                let last = *projection;
                let (loss, correct) = last.loss.forward_and_correct(
                    last.hidden,
                    last.weight,
                    last.bias,
                    classes.clone(),
                );
                (loss, Some(correct))
            }
            (output, Self::Classes(classes)) => {
                let output = rows(output);
                let loss = CrossEntropyLossConfig::new().init(&output.device());
                let loss = loss.forward(output.clone(), classes.clone());
                let predicted = output.argmax(1).reshape(classes.dims());
                let correct = predicted.equal(classes.clone()).int().sum();
                (loss, Some(correct))
            }
            (output, Self::Values(values)) => {
                let loss = MseLoss::new();
                let loss = loss.forward(rows(output), values.clone(), Reduction::Mean);
                (loss, None)
            }
        }
    }
}

/// The model's output as `[rows, values]`, in the type of the loss.
fn rows(output: Value) -> Tensor<2> {
    output.into_rows().cast(Dtype::F32.float())
}
