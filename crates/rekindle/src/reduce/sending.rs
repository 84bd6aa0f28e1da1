//! Tensors that one rank sends to all others, through host memory.

use std::time::Instant;

use burn::tensor::{Tensor, TensorData, kind::Basic};
use rekindle_plan::{Bytes, Seconds};

use super::{ReduceError, Reducer};
use crate::record::{Exchanges, TimedExchange};

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
                Err(error) => self.failed = Some(ReduceError::Failed(error.to_string())),
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
                self.failed = Some(error);
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
