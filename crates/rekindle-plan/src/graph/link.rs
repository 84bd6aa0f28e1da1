//! Offloading tensors to host memory: the cost of the link, and the operations that use it.
//!
//! A graph [with transfers](Graph::linked) has two more operations for each tensor that may be offloaded, after
//! all other operations, and one more tensor, its *host copy*, which takes no device bytes:
//!
//! | operation | reads | makes | seconds |
//! |---|---|---|---|
//! | [`Offload`](Transfer::Offload) | the tensor | its host copy | latency to the host + bytes / rate to the host |
//! | [`Fetch`](Transfer::Fetch) | the host copy | the tensor | latency to the device + bytes / rate to the device |
//!
//! So a program determines when tensors are transferred, in the same way as it determines what is recomputed: a
//! tensor's device bytes are freed after the last use before its fetch, and the copy's host bytes after its last fetch.
//! Transfers do not overlap with computation: their time is added to the step's.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{Graph, GraphError, Operation, OperationId, Tensor, TensorId, Transfer};
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// How fast one direction of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// What a transfer takes besides its bytes.
    pub latency_s: Seconds,
    /// How many bytes more go in a second.
    pub bytes_per_s: f64,
}

impl Rate {
    /// The time for this many bytes.
    pub fn seconds(&self, bytes: Bytes) -> Seconds {
        self.latency_s + Seconds(bytes.0 as f64 / self.bytes_per_s)
    }

    /// The rate from the times of a smaller and of a larger number of bytes.
    pub fn of_times(small: (Bytes, Seconds), large: (Bytes, Seconds)) -> Rate {
        let ((few, of_few), (many, of_many)) = (small, large);
        let more = (of_many - of_few).0;
        let bytes_per_s = match more > 0.0 {
            true => (many.0 - few.0) as f64 / more,
            // The times are too short to separate latency and rate.
            false => many.0 as f64 / of_many.0.max(1e-9),
        };
        Rate {
            latency_s: Seconds((of_few.0 - few.0 as f64 / bytes_per_s).max(0.0)),
            bytes_per_s,
        }
    }
}

/// The link between a device and its host, and how much may be held there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From the device.
    pub to_host: Rate,
    /// Back.
    pub to_device: Rate,
    /// The most bytes of the host that copies take together.
    pub host_bytes: Bytes,
    /// What an offload takes of the device besides its tensor, at most; never more than twice the tensor.
    pub staging_bytes: Bytes,
}

impl Link {
    /// What moving this many bytes costs, without tensors.
    pub(crate) fn transfer(
        &self,
        transfer: Transfer,
        bytes: Bytes,
    ) -> Result<Operation, GraphError> {
        let (rate, staged) = match transfer {
            Transfer::Offload => (self.to_host, self.staging_bytes.min(bytes + bytes)),
            Transfer::Fetch => (self.to_device, Bytes::ZERO),
        };
        let seconds = rate.seconds(bytes);
        if !seconds.0.is_finite() || seconds.0 < 0.0 {
            return Err(GraphError(format!(
                "moving {bytes} takes {} seconds, which is no time",
                seconds.0
            )));
        }
        Ok(Operation {
            seconds,
            temp_bytes: staged,
            transfer: Some(transfer),
            ..Operation::default()
        })
    }
}

impl Graph {
    /// The graph with transfers of these tensors: the `k`-th one's offload and fetch are the operations `n + 2k` and
    /// `n + 2k + 1`, where n is the number of operations of `self`. It is the graph itself if no tensor is offloaded.
    ///
    /// # Errors
    /// A tensor is given, a view, made by an update, or not in the graph; a rate is
    /// not a positive number; or there is no link.
    pub fn linked(
        &self,
        tensors: &[TensorId],
        link: Option<&Link>,
    ) -> Result<Cow<'_, Graph>, GraphError> {
        if tensors.is_empty() {
            return Ok(Cow::Borrowed(self));
        }
        let mut graph = self.clone();
        let mut makers = HashMap::new();
        for made in &self.operations {
            if !made.view && made.updates.is_none() {
                makers.extend(made.outputs.iter().map(|output| (*output, made)));
            }
        }
        for tensor in tensors {
            let (Some(maker), Some(link)) = (makers.get(tensor), link) else {
                return Err(GraphError(format!(
                    "tensor {tensor} cannot be moved to the host: no operation of the step makes a storage for it"
                )));
            };
            let bytes = self.tensor(*tensor).bytes;
            let copy = TensorId(graph.tensors.len() as u32);
            graph.tensors.push(Tensor {
                host_bytes: bytes,
                ..Tensor::default()
            });
            for (transfer, input, output) in [
                (Transfer::Offload, *tensor, copy),
                (Transfer::Fetch, copy, *tensor),
            ] {
                graph.operations.push(Operation {
                    inputs: vec![input],
                    outputs: vec![output],
                    backward: maker.backward,
                    ..link.transfer(transfer, bytes)?
                });
            }
        }
        Ok(Cow::Owned(graph))
    }

    /// The tensors that can be moved, of those that some operations make: they take bytes, and no update makes them.
    pub(crate) fn movable(&self, operations: &[OperationId]) -> Vec<TensorId> {
        let operations = operations.iter().map(|id| self.operation(*id));
        let computing = operations.filter(|one| !one.view && one.updates.is_none());
        let made = computing.flat_map(|one| one.outputs.iter().copied());
        let mut movable: Vec<TensorId> = made
            .filter(|tensor| !self.tensor(*tensor).bytes.is_zero())
            .collect();
        movable.sort_unstable();
        movable
    }

    /// The tensors that operations move, of those with transfers. The transfers become those of the graph with transfers of
    /// these tensors alone.
    pub(crate) fn moved(&self, operations: &mut [OperationId], of: &[TensorId]) -> Vec<TensorId> {
        let first = self.operations.len();
        let transfer = |id: &OperationId| id.index().checked_sub(first);
        let transfers = operations.iter().filter_map(transfer);
        let moved: BTreeSet<TensorId> = transfers.map(|transfer| of[transfer / 2]).collect();
        let moved: Vec<TensorId> = moved.into_iter().collect();
        for id in operations {
            if let Some(transfer) = transfer(id) {
                let place = moved.partition_point(|one| *one < of[transfer / 2]);
                *id = OperationId((first + 2 * place + transfer % 2) as u32);
            }
        }
        moved
    }
}
