//! A second way to record a stage: burn's balanced strategy, operation by operation.
//!
//! `Autodiff<B, BalancedCheckpointing>` keeps the results of matrix products and convolutions and computes
//! element-wise operations again in the backward, in place of keeping their inputs. It saves in stages of several
//! element-wise operations (normalisations, GELU, residual sums) and nothing in a linear layer alone. Its tensors
//! are the default strategy's, so one training step can record some stages this way and some that way; schedules
//! call it alternative 1 of a stage.
//!
//! Only the type of the modules differs. [`run`] makes the layer's twin of the other type, on the same parameter
//! leaves, so that gradients arrive as if the layer itself had run, and hands moved statistics back:
//!
//! ```
//! use burn::{module::Module, nn::LayerNorm, prelude::*};
//! use rekindle::{CheckpointBackend, Layer, balanced};
//!
//! #[derive(Module, Debug)]
//! struct Normalise<B: Backend> {
//!     norm: LayerNorm<B>,
//! }
//!
//! impl<B: Backend> Layer<B> for Normalise<B> {
//!     type Input = Tensor<B, 2>;
//!     type Output = Tensor<B, 2>;
//!
//!     fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
//!         self.norm.forward(input)
//!     }
//!
//!     fn has_balanced(&self) -> bool {
//!         true
//!     }
//!
//!     fn forward_balanced(&self, input: Tensor<B, 2>) -> Tensor<B, 2>
//!     where
//!         B: CheckpointBackend,
//!     {
//!         balanced::run(self, |twin: &Normalise<B::Balanced>| {
//!             balanced::from_balanced(twin.forward(balanced::to_balanced(input)))
//!         })
//!     }
//! }
//! ```

use std::collections::HashMap;

use burn::{
    module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{
        BasicOps, Bool, Float, Int, Tensor, TensorKind, TensorPrimitive, backend::Backend,
        ops::FloatTensor,
    },
};

use crate::backend::CheckpointBackend;

/// Runs a layer's twin on the balanced backend.
///
/// The twin has the layer's parameter leaves. Statistics that the run moves move in the layer.
///
/// # Panics
///
/// If the layer has a parameter that was never used: a lazy parameter must be drawn before.
pub fn run<B, M, T, O>(layer: &M, forward: impl FnOnce(&T) -> O) -> O
where
    B: CheckpointBackend,
    M: AutodiffModule<B>,
    T: AutodiffModule<B::Balanced, InnerModule = M::InnerModule>,
{
    let mut leaves = Leaves::<B> {
        by_id: HashMap::new(),
        any_without_gradient: false,
    };
    Module::visit(layer, &mut leaves);
    let has_statistics = leaves.any_without_gradient;
    let twin = Module::map(T::from_inner(layer.valid()), &mut leaves);
    let output = forward(&twin);
    if has_statistics {
        let mut statistics = Values::<B::InnerBackend>(HashMap::new());
        twin.valid().visit(&mut statistics);
        // Clones share statistics with the layer, and nothing else that a map replaces.
        drop(Module::<B>::map(
            layer.clone(),
            &mut SetStatistics(statistics.0),
        ));
    }
    output
}

/// A tensor for the balanced backend: the same values, the same place in the graph.
pub fn to_balanced<B, const D: usize, K>(tensor: Tensor<B, D, K>) -> Tensor<B::Balanced, D, K>
where
    B: CheckpointBackend,
    K: SharedKind<B>,
{
    K::to_balanced(tensor)
}

/// The way back.
pub fn from_balanced<B, const D: usize, K>(tensor: Tensor<B::Balanced, D, K>) -> Tensor<B, D, K>
where
    B: CheckpointBackend,
    K: SharedKind<B>,
{
    K::from_balanced(tensor)
}

/// A kind of elements whose tensors both backends share: floats, integers, booleans.
pub trait SharedKind<B: CheckpointBackend>:
    TensorKind<B> + TensorKind<B::Balanced> + BasicOps<B> + BasicOps<B::Balanced>
{
    /// See [`to_balanced`].
    fn to_balanced<const D: usize>(tensor: Tensor<B, D, Self>) -> Tensor<B::Balanced, D, Self>
    where
        Self: Sized;
    /// See [`from_balanced`].
    fn from_balanced<const D: usize>(tensor: Tensor<B::Balanced, D, Self>) -> Tensor<B, D, Self>
    where
        Self: Sized;
}

impl<B: CheckpointBackend> SharedKind<B> for Float {
    fn to_balanced<const D: usize>(tensor: Tensor<B, D>) -> Tensor<B::Balanced, D> {
        Tensor::from_primitive(TensorPrimitive::Float(tensor.into_primitive().tensor()))
    }

    fn from_balanced<const D: usize>(tensor: Tensor<B::Balanced, D>) -> Tensor<B, D> {
        Tensor::from_primitive(TensorPrimitive::Float(tensor.into_primitive().tensor()))
    }
}

impl<B: CheckpointBackend> SharedKind<B> for Int {
    fn to_balanced<const D: usize>(tensor: Tensor<B, D, Int>) -> Tensor<B::Balanced, D, Int> {
        Tensor::from_primitive(tensor.into_primitive())
    }

    fn from_balanced<const D: usize>(tensor: Tensor<B::Balanced, D, Int>) -> Tensor<B, D, Int> {
        Tensor::from_primitive(tensor.into_primitive())
    }
}

impl<B: CheckpointBackend> SharedKind<B> for Bool {
    fn to_balanced<const D: usize>(tensor: Tensor<B, D, Bool>) -> Tensor<B::Balanced, D, Bool> {
        Tensor::from_primitive(tensor.into_primitive())
    }

    fn from_balanced<const D: usize>(tensor: Tensor<B::Balanced, D, Bool>) -> Tensor<B, D, Bool> {
        Tensor::from_primitive(tensor.into_primitive())
    }
}

/// Collects a layer's leaves, then puts them into its twin.
struct Leaves<B: CheckpointBackend> {
    by_id: HashMap<ParamId, FloatTensor<B>>,
    any_without_gradient: bool,
}

impl<B: CheckpointBackend> ModuleVisitor<B> for Leaves<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let tensor = param.val();
        self.any_without_gradient |= !tensor.is_require_grad();
        self.by_id
            .insert(param.id, tensor.into_primitive().tensor());
    }
}

impl<B: CheckpointBackend> ModuleMapper<B::Balanced> for Leaves<B> {
    fn map_float<const D: usize>(
        &mut self,
        param: Param<Tensor<B::Balanced, D>>,
    ) -> Param<Tensor<B::Balanced, D>> {
        let leaf = self.by_id.get(&param.id).cloned();
        param.map(|tensor| match leaf {
            Some(leaf) => Tensor::from_primitive(TensorPrimitive::Float(leaf)),
            None => tensor,
        })
    }
}

/// The values of all float tensors.
struct Values<I: Backend>(HashMap<ParamId, FloatTensor<I>>);

impl<I: Backend> ModuleVisitor<I> for Values<I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<I, D>>) {
        self.0
            .insert(param.id, param.val().into_primitive().tensor());
    }
}

/// Sets statistics, which want no gradient.
struct SetStatistics<I: Backend>(HashMap<ParamId, FloatTensor<I>>);

impl<B: CheckpointBackend> ModuleMapper<B> for SetStatistics<B::InnerBackend> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let value = self.0.get(&param.id).cloned();
        param.map(|tensor| match value {
            Some(value) if !tensor.is_require_grad() => {
                Tensor::from_inner(Tensor::from_primitive(TensorPrimitive::Float(value)))
            }
            _ => tensor,
        })
    }
}
