//! The number type of a model.
//!
//! | in the [`Dtype`] | always in `f32` |
//! |---|---|
//! | parameters, running statistics | the loss, and the output that it is computed from |
//! | activations, and the tensors that a graph saves | the optimizer's state, each update, and the optimizer's own copy of the parameters ([`MasterWeights`](crate::MasterWeights)) |
//! | gradients, until the update | sums of gradients of several backward passes, targets |
//!
//! An optimizer has to work in `f32`: the square of a gradient below 2e-4 is 0 in `f16`, and so is Adam's epsilon.
//! Gradients below 6e-8 vanish in `f16`, so the loss is multiplied by a scale before its backward pass, and gradients
//! are divided by it (Micikevicius et al. 2018, arXiv 1710.03740). `rekindle-train` does both.
//!
//! burn's tensors carry their type at run time, so all types share one backend, and a model is initialised in `f32` and
//! then rounded: a seed gives the same model in each type.

use std::{fmt, str::FromStr};

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{FloatDType, Tensor},
};
use serde::{Deserialize, Serialize};

/// A type of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits: up to 65,504, with 11 significant bits; gradients below 6e-8 vanish where the loss is not scaled.
    F16,
    /// 16 bits: the range of `f32`, with 8 significant bits.
    Bf16,
}

impl Dtype {
    /// All types.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes per number.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Rounds all float tensors of the module, statistics included, to this type.
    ///
    /// No clone of the module may be in use: statistics are replaced in place.
    pub fn cast<M: Module>(self, module: M) -> M {
        struct Cast(FloatDType);
        impl ModuleMapper for Cast {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (id, tensor, mapper) = param.consume();
                let wants_gradient = tensor.is_require_grad();
                // Without a graph: the rounded tensor is a new leaf.
                let rounded = tensor.set_require_grad(false).cast(self.0);
                Param::from_mapped_value(id, rounded.set_require_grad(wants_gradient), mapper)
            }
        }
        module.map(&mut Cast(self.float()))
    }

    /// burn's name for this type.
    #[must_use]
    pub fn float(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::F16 => FloatDType::F16,
            Self::Bf16 => FloatDType::BF16,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|dtype| dtype.name() == text)
            .ok_or_else(|| format!("unknown dtype `{text}`: expected f32, f16 or bf16"))
    }
}
