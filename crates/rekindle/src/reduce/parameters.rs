//! Copies rank 0's model to all ranks.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Bool, Int, Tensor, TensorData, kind::Basic},
};

use super::{ReduceError, Reducer, agree};
use crate::record::{Leaf, Place};

/// Replaces a module's parameters and running statistics by those of rank 0. Each rank keeps its own parameter ids.
///
/// # Errors
///
/// If the modules of the ranks differ in structure, or ranks do not answer.
pub fn broadcast_parameters<M: Module>(reducer: &dyn Reducer, model: M) -> Result<M, ReduceError> {
    let places = Place::of(&model).into_iter();
    let shapes: String = places
        .map(|place| format!("{:?}{:?};", place.shape, place.dtype))
        .collect();
    agree(reducer, "the model's parameters", shapes.as_bytes())?;
    let failed = Ok(());
    let mut received = Received { reducer, failed };
    let model = model.map(&mut received);
    received.failed.map(|()| model)
}

/// Receives one tensor after another from rank 0.
struct Received<'a> {
    reducer: &'a dyn Reducer,
    failed: Result<(), ReduceError>,
}

impl Received<'_> {
    /// Rank 0's value, which replaces `own`; `None` on rank 0 and after a failure.
    fn value<const D: usize, K: Basic>(&mut self, own: &Tensor<D, K>) -> Option<Tensor<D, K>> {
        self.failed.as_ref().ok()?;
        let (root, device) = (self.reducer.rank() == 0, own.device());
        let (shape, dtype) = (own.shape(), own.dtype());
        let sent = match root {
            true => own
                .clone()
                .try_into_data()
                .map(|data| data.as_bytes().to_vec()),
            false => Ok(Vec::new()),
        };
        let sent = sent.map_err(|error| ReduceError::Failed(error.to_string()));
        match sent.and_then(|bytes| self.reducer.broadcast(0, bytes).wait()) {
            Ok(_) if root => None,
            Ok(bytes) => {
                let data = TensorData::from_bytes_vec(bytes, shape, dtype);
                Some(Tensor::from_data(data, (&device, dtype)))
            }
            Err(error) => {
                self.failed = Err(error);
                None
            }
        }
    }
}

impl ModuleMapper for Received<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, own, mapper) = param.consume();
        let leaf = Leaf::of(&own);
        let value = self
            .value(&own)
            .map(|value| leaf.again(value.without_autodiff()));
        Param::from_mapped_value(id, value.unwrap_or(own), mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, own, mapper) = param.consume();
        Param::from_mapped_value(id, self.value(&own).unwrap_or(own), mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, own, mapper) = param.consume();
        Param::from_mapped_value(id, self.value(&own).unwrap_or(own), mapper)
    }
}
