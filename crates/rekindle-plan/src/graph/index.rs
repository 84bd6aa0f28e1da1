//! The maker, the readers and the shared storage of each tensor of a graph. Cost: O(operations and their tensors).

use super::{Graph, OperationId, TensorId};

/// Lookup tables for a valid graph without transfers.
pub(crate) struct Index {
    /// The operation that makes each tensor; `None` for given ones.
    maker: Vec<Option<OperationId>>,
    /// The tensor whose storage each tensor shares through views: itself where no view is involved.
    root: Vec<TensorId>,
    /// The operations that read each tensor, each once, in recorded order.
    readers: Vec<Vec<OperationId>>,
}

impl Index {
    pub(crate) fn new(graph: &Graph) -> Index {
        let tensors = graph.tensors.len();
        let mut maker = vec![None; tensors];
        let mut readers: Vec<Vec<OperationId>> = vec![Vec::new(); tensors];
        for (id, operation) in graph.operation_ids().zip(&graph.operations) {
            for &output in &operation.outputs {
                maker[output.index()] = Some(id);
            }
            for input in &operation.inputs {
                let readers = &mut readers[input.index()];
                if readers.last() != Some(&id) {
                    readers.push(id);
                }
            }
        }
        Index {
            maker,
            root: graph.roots(),
            readers,
        }
    }

    /// The operation that computes a tensor; `None` for a given one.
    pub(crate) fn maker(&self, tensor: TensorId) -> Option<OperationId> {
        self.maker[tensor.index()]
    }

    /// The tensor whose storage it shares: itself, or the base of its views.
    pub(crate) fn root(&self, tensor: TensorId) -> TensorId {
        self.root[tensor.index()]
    }

    /// The operations that compute with a tensor, each once, in recorded order.
    pub(crate) fn readers(&self, tensor: TensorId) -> &[OperationId] {
        &self.readers[tensor.index()]
    }
}
