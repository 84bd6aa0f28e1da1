//! Layers that share their parameters, across optimizer steps.
//!
//! A layer that a chain uses twice is there as two clones. burn's clones share their tensors, so gradients of all uses
//! add up; but its optimizers update each clone by itself, and find the gradient only at the first: afterwards the
//! clones are two tensors under one id, of which one was trained. This holds in a plain burn loop just as well.
//! [`retie`] makes them one again:
//!
//! ```ignore
//! model = rekindle::retie(optimizer.step(rate, model, output.gradients));
//! ```

use std::{any::Any, collections::HashMap};

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    tensor::Tensor,
};

/// Gives float parameters of one id the tensor of the first of them, in visiting order.
///
/// To be called after every optimizer step of a model with tied layers, whether it is checkpointed or not. Running
/// statistics of tied layers become those of the first, too.
#[must_use]
pub fn retie<M: Module>(module: M) -> M {
    struct Retie(HashMap<ParamId, Box<dyn Any>>);
    impl ModuleMapper for Retie {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let first = self.0.entry(id).or_insert_with(|| Box::new(tensor.clone()));
            let tensor = match first.downcast_ref::<Tensor<D>>() {
                Some(first) => first.clone(),
                // Parameters of one id and of several ranks are not tied.
                None => tensor,
            };
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    module.map(&mut Retie(HashMap::new()))
}
