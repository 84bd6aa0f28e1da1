//! Copies rank 0's model to all ranks.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Bool, Int, Tensor},
};

use super::{ReduceError, Reducer, agree, sending::Sending};
use crate::record::{Leaf, Place};

/// The rank whose values all get.
const ROOT: usize = 0;

/// Replaces a module's parameters and running statistics by those of rank 0. Each rank keeps its own parameter ids.
///
/// # Errors
///
/// If the modules of the ranks differ in structure, rank 0 cannot read its values, or ranks do not answer.
pub fn broadcast_parameters<M: Module>(reducer: &Reducer, model: M) -> Result<M, ReduceError> {
    let places = Place::of(&model).into_iter();
    let shapes: String = places
        .map(|place| format!("{:?}{:?};", place.shape, place.dtype))
        .collect();
    agree(reducer, "the model's parameters", shapes.as_bytes())?;
    let mut received = Received {
        is_root: reducer.rank() == ROOT,
        sending: Sending::new(reducer),
    };
    let model = model.map(&mut received);
    received.sending.done().map(|_| model)
}

/// Receives one tensor after another from rank 0.
struct Received<'a> {
    is_root: bool,
    sending: Sending<'a>,
}

impl ModuleMapper for Received<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, own, mapper) = param.consume();
        let leaf = Leaf::of(&own);
        let mut value = self.sending.value(ROOT, own);
        if !self.is_root {
            value = leaf.again(value.without_autodiff());
        }
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, own, mapper) = param.consume();
        Param::from_mapped_value(id, self.sending.value(ROOT, own), mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, own, mapper) = param.consume();
        Param::from_mapped_value(id, self.sending.value(ROOT, own), mapper)
    }
}
