//! Layers that share their parameters, across optimizer steps.
//!
//! A chain that uses a layer twice contains two clones of it. burn's clones share their tensors, so gradients of all
//! uses add up. But burn's optimizers update each clone separately and find the gradient only for the first, so
//! afterwards the clones are two tensors with one id, and only one of them was updated. The same happens in a plain
//! burn loop. [`retie`] makes them one tensor again:
//!
//! ```ignore
//! model = rekindle::retie(optimizer.step(rate, model, output.gradients));
//! ```

use std::{any::Any, collections::HashMap};

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    tensor::Tensor,
};

/// Gives all float parameters with the same id the tensor of the first one in visiting order.
///
/// Call this after every optimizer step of a model with tied layers, whether it is checkpointed or not. Running
/// statistics of tied layers also become those of the first.
#[must_use]
pub fn retie<M: Module>(module: M) -> M {
    struct Retie(HashMap<ParamId, Box<dyn Any>>);
    impl ModuleMapper for Retie {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let first = self.0.entry(id).or_insert_with(|| Box::new(tensor.clone()));
            let tensor = match first.downcast_ref::<Tensor<D>>() {
                Some(first) => first.clone(),
                // Parameters with the same id but different numbers of dimensions are not tied.
                None => tensor,
            };
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    module.map(&mut Retie(HashMap::new()))
}
