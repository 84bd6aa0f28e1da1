//! The maker, the readers and the shared storage of each tensor of a graph. Cost: O(operations and their tensors).

use super::{Graph, OperationId, TensorId, Transfer};

/// Lookup tables for planners, for a valid graph.
pub(crate) struct Index {
    /// The operation that makes each tensor; `None` for given ones.
    maker: Vec<Option<OperationId>>,
    /// The tensor whose storage each tensor shares through views: itself where no view is involved.
    root: Vec<TensorId>,
    /// The operations that read each tensor, each once, in recorded order.
    readers: Vec<Vec<OperationId>>,
    /// The transfers of each tensor, if it has any; empty for graphs without transfers.
    moves: Vec<Option<Moves>>,
}

/// The transfers of a tensor.
#[derive(Clone, Copy)]
pub(crate) struct Moves {
    pub(crate) offload: OperationId,
    pub(crate) fetch: OperationId,
    /// The tensor on the host.
    pub(crate) copy: TensorId,
}

impl Index {
    pub(crate) fn new(graph: &Graph) -> Index {
        let tensors = graph.tensors.len();
        let mut maker = vec![None; tensors];
        let mut readers: Vec<Vec<OperationId>> = vec![Vec::new(); tensors];
        let mut moves: Vec<Option<Moves>> = Vec::new();
        for (id, operation) in graph.operation_ids().zip(&graph.operations) {
            if let Some(transfer) = operation.transfer {
                // An offload is followed by its fetch.
                if transfer == Transfer::Offload {
                    moves.resize(tensors, None);
                    moves[operation.inputs[0].index()] = Some(Moves {
                        offload: id,
                        fetch: OperationId(id.0 + 1),
                        copy: operation.outputs[0],
                    });
                }
                continue;
            }
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
            moves,
        }
    }

    /// Whether any tensor can be offloaded.
    pub(crate) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    /// The transfers of a tensor, if it can be offloaded.
    pub(crate) fn moves(&self, tensor: TensorId) -> Option<Moves> {
        *self.moves.get(tensor.index())?
    }

    /// The operation that computes a tensor; `None` for a given one, and for copies on the host.
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
