//! Losses and what is counted beside them, on the output of a model `[batch, values]`.

use burn::{
    nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction},
    tensor::{Int, Tensor},
};

use crate::model::value::Value;
use rekindle::{
    activation::{Activation, ActivationMapper, ActivationVisitor},
    dtype::Dtype,
};

/// What a model's output is compared with, on the device.
#[derive(Debug, Clone)]
pub enum TargetTensor {
    /// Class ids, shape `[batch]`.
    Classes(Tensor<1, Int>),
    /// Numbers, shape `[batch, values]`.
    Values(Tensor<2>),
}

impl Activation for TargetTensor {
    fn visit<V: ActivationVisitor>(&self, visitor: &mut V) {
        match self {
            Self::Classes(classes) => visitor.int(classes),
            Self::Values(values) => visitor.float(values),
        }
    }

    fn map<M: ActivationMapper>(self, mapper: &mut M) -> Self {
        match self {
            Self::Classes(classes) => Self::Classes(mapper.int(classes)),
            Self::Values(values) => Self::Values(mapper.float(values)),
        }
    }
}

impl TargetTensor {
    /// The mean loss, shape `[1]`: cross entropy for classes, squared error for values.
    pub fn loss(&self, output: Tensor<2>) -> Tensor<1> {
        match self {
            Self::Classes(classes) => CrossEntropyLossConfig::new()
                .init(&output.device())
                .forward(output, classes.clone()),
            Self::Values(values) => MseLoss::new().forward(output, values.clone(), Reduction::Mean),
        }
    }

    /// How many samples of the batch are classified right, shape `[1]`; `None` where there are no classes.
    pub fn correct(&self, output: Tensor<2>) -> Option<Tensor<1, Int>> {
        match self {
            Self::Classes(classes) => {
                let [batch] = classes.dims();
                let predicted = output.argmax(1).reshape([batch]);
                Some(predicted.equal(classes.clone()).int().sum())
            }
            Self::Values(_) => None,
        }
    }
}

/// The model's output as `[batch, values]`, in the type of the loss.
pub(super) fn rows(output: Value) -> Tensor<2> {
    match output.into_float2() {
        Ok(rows) => rows.cast(Dtype::F32.float()),
        Err(error) => unreachable!("the output's shape was checked before the first step: {error}"),
    }
}
