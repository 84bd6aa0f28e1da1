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

impl Graph {
    /// The graph [`linked`](Self::linked) for these tensors.
    fn with_transfers(&self, tensors: &[TensorId], link: &Link) -> Result<Graph, GraphError> {
        let mut graph = self.clone();
        let makers = self.transferable();
        for &tensor in tensors {
            let maker = makers.get(tensor.index()).copied().flatten();
            let maker = maker.ok_or_else(|| GraphError::not_transferable(tensor))?;
            let bytes = self.tensor(tensor).bytes;
            let copy = TensorId(graph.tensors.len() as u32);
            graph.tensors.push(Tensor {
                host_bytes: bytes,
                ..Tensor::default()
            });
            for rate in [link.to_host, link.to_device] {
                let seconds = rate.seconds(bytes).0;
                if !seconds.is_finite() || seconds < 0.0 {
                    let operation = OperationId(graph.operations.len() as u32);
                    return Err(GraphError::no_time(operation, seconds));
                }
            }
            let transfer = |transfer, input, output, seconds| Operation {
                inputs: vec![input],
                outputs: vec![output],
                seconds,
                backward: self.operation(maker).backward,
                transfer: Some(transfer),
                ..Operation::default()
            };
            let offload = transfer(Transfer::Offload, tensor, copy, link.to_host.seconds(bytes));
            graph.operations.push(Operation {
                temp_bytes: link.staging_bytes.min(bytes + bytes),
                ..offload
            });
            let seconds = link.to_device.seconds(bytes);
            let fetch = transfer(Transfer::Fetch, copy, tensor, seconds);
            graph.operations.push(fetch);
        }
        Ok(graph)
    }

    /// The graph with transfers of these tensors: the `k`-th one's offload and fetch are the operations `n + 2k` and
    /// `n + 2k + 1`, where n is the number of operations of `self`. It is the graph itself if no tensor is offloaded.
    ///
    /// # Errors
    /// A tensor is given, a view or the base of one that runs once, made by an update, or not in the graph; a rate is
    /// not a positive number; or there is no link.
    pub fn linked(
        &self,
        tensors: &[TensorId],
        link: Option<&Link>,
    ) -> Result<Cow<'_, Graph>, GraphError> {
        match (tensors, link) {
            ([], _) => Ok(Cow::Borrowed(self)),
            (tensors, Some(link)) => self.with_transfers(tensors, link).map(Cow::Owned),
            ([tensor, ..], None) => Err(GraphError::not_transferable(*tensor)),
        }
    }

    /// The graph with transfers of all tensors that have their own bytes, and the list of these tensors.
    pub(crate) fn with_all_transfers(
        &self,
        link: &Link,
    ) -> Result<(Graph, Vec<TensorId>), GraphError> {
        let makers = self.transferable();
        let tensors = self.tensor_ids().filter(|tensor| {
            makers[tensor.index()].is_some() && self.tensor(*tensor).bytes > Bytes::ZERO
        });
        let tensors: Vec<TensorId> = tensors.collect();
        Ok((self.with_transfers(&tensors, link)?, tensors))
    }
}

/// The tensors that the operations transfer, and the operations in a graph with transfers of only these tensors. The
/// original graph has transfers of `tensors`, after `plain` other operations.
pub(super) fn used(
    operations: &[OperationId],
    tensors: &[TensorId],
    plain: usize,
) -> (Vec<TensorId>, Vec<OperationId>) {
    let place = |id: &OperationId| Some(id.index().checked_sub(plain)? / 2);
    let mut places: Vec<usize> = operations.iter().filter_map(place).collect();
    places.sort_unstable();
    places.dedup();
    let renumbered = operations.iter().map(|id| match place(id) {
        Some(old) => {
            let new = places.partition_point(|&one| one < old);
            OperationId(id.0 - 2 * (old - new) as u32)
        }
        None => *id,
    });
    let renumbered = renumbered.collect();
    (
        places.into_iter().map(|place| tensors[place]).collect(),
        renumbered,
    )
}
