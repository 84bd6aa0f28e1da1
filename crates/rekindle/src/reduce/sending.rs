//! Tensors that one rank sends to all others, through host memory.

use std::time::Instant;

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    tensor::{Bool, Int, Tensor, TensorData, kind::Basic},
};
use rekindle_plan::{Bytes, Seconds};

use super::{ReduceError, Reducer, agree};
use crate::record::{Exchanges, Leaf, Place, TimedExchange};

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
    let (model, sent) = sent(reducer, model, |_, _| Some(0));
    sent.map(|_| model)
}

/// Replaces a module's tensors by those of the ranks that `owner` returns for an id, and whether it trains; `None` leaves a
/// tensor as it is. Also returns what that took, counted from the call.
pub(super) fn sent<M: Module>(
    reducer: &Reducer,
    model: M,
    owner: impl FnMut(ParamId, bool) -> Option<usize>,
) -> (M, Result<TimedExchange, ReduceError>) {
    struct Sent<'a, F> {
        sending: Sending<'a>,
        owner: F,
    }
    impl<F: FnMut(ParamId, bool) -> Option<usize>> Sent<'_, F> {
        fn value<const D: usize, K: Basic>(
            &mut self,
            id: ParamId,
            own: Tensor<D, K>,
        ) -> Tensor<D, K> {
            match (self.owner)(id, false) {
                Some(owner) => self.sending.value(owner, own),
                None => own,
            }
        }
    }
    impl<F: FnMut(ParamId, bool) -> Option<usize>> ModuleMapper for Sent<'_, F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let trains = param.is_require_grad();
            let (id, own, mapper) = param.consume();
            let value = match (self.owner)(id, trains) {
                None => own,
                Some(owner) if owner == self.sending.reducer.rank() => {
                    self.sending.value(owner, own)
                }
                Some(owner) => {
                    let leaf = Leaf::of(&own);
                    leaf.again(self.sending.value(owner, own.without_autodiff()))
                }
            };
            Param::from_mapped_value(id, value, mapper)
        }

        fn map_int<const D: usize>(
            &mut self,
            param: Param<Tensor<D, Int>>,
        ) -> Param<Tensor<D, Int>> {
            let (id, own, mapper) = param.consume();
            Param::from_mapped_value(id, self.value(id, own), mapper)
        }

        fn map_bool<const D: usize>(
            &mut self,
            param: Param<Tensor<D, Bool>>,
        ) -> Param<Tensor<D, Bool>> {
            let (id, own, mapper) = param.consume();
            Param::from_mapped_value(id, self.value(id, own), mapper)
        }
    }
    let sending = Sending::new(reducer);
    let mut all = Sent { sending, owner };
    let model = model.map(&mut all);
    (model, all.sending.done())
}

/// Tensors that ranks send each other one by one, in the same order on all ranks. After the first failure values stay as
/// they are.
pub(crate) struct Sending<'a> {
    reducer: &'a Reducer,
    failed: Option<ReduceError>,
    disconnected: bool,
    started: Instant,
    bytes: Bytes,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(reducer: &'a Reducer) -> Self {
        Self {
            reducer,
            failed: None,
            disconnected: false,
            started: Instant::now(),
            bytes: Bytes::ZERO,
        }
    }

    /// The value of a tensor on the rank `owner`; on that rank, and after an error, `own`. A rank that cannot read its own
    /// value sends nothing, so that all ranks fail.
    pub(crate) fn value<const D: usize, K: Basic>(
        &mut self,
        owner: usize,
        own: Tensor<D, K>,
    ) -> Tensor<D, K> {
        let (device, shape, dtype) = (own.device(), own.shape(), own.dtype());
        let bytes = shape.num_elements() * dtype.size();
        self.bytes += Bytes(bytes as u64);
        let mut read = Vec::new();
        if owner == self.reducer.rank() {
            match own.clone().try_into_data() {
                Ok(data) => read = data.as_bytes().to_vec(),
                Err(error) => {
                    let error = ReduceError::Failed(error.to_string());
                    self.failed.get_or_insert(error);
                }
            }
        }
        match self.sent(owner, read, bytes) {
            None => own,
            Some(sent) => {
                // Free the old value before the new one is allocated.
                drop(own);
                let data = TensorData::from_bytes_vec(sent, shape, dtype);
                Tensor::from_data(data, (&device, dtype))
            }
        }
    }

    /// Called instead of [`value`](Self::value) if this rank has lost the value.
    pub(crate) fn lost(&mut self, owner: usize) {
        drop(self.sent(owner, Vec::new(), 0));
    }

    /// The `bytes` bytes that another rank sends.
    fn sent(&mut self, owner: usize, own: Vec<u8>, bytes: usize) -> Option<Vec<u8>> {
        if self.disconnected {
            return None;
        }
        match self.reducer.broadcast(owner, own).wait() {
            Ok(_) if owner == self.reducer.rank() => None,
            Ok(sent) if sent.len() == bytes => Some(sent),
            Ok(_) => {
                let message = format!("rank {owner} has lost a parameter");
                self.failed.get_or_insert(ReduceError::Failed(message));
                None
            }
            Err(error) => {
                self.disconnected = true;
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    /// Ends the exchange, and returns what it took, copies included.
    pub(crate) fn done(self) -> Result<TimedExchange, ReduceError> {
        let done = TimedExchange {
            what: Exchanges::Parameters,
            bytes: self.bytes,
            start_s: Seconds::ZERO,
            duration_s: Seconds(self.started.elapsed().as_secs_f64()),
        };
        self.failed.map_or(Ok(done), Err)
    }
}
