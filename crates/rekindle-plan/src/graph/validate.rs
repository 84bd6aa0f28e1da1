//! The rules of a [`Graph`], checked once before anything is planned.

use super::{Graph, Operation, OperationId, TensorId, Transfer};

/// The error of an invalid graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// A tensor number that does not exist.
    #[error("operation {operation} names tensor {tensor}, but there are {tensors} tensors")]
    UnknownTensor {
        /// The operation.
        operation: OperationId,
        /// The number.
        tensor: TensorId,
        /// The number of tensors.
        tensors: usize,
    },
    /// A tensor is read before any operation made it.
    #[error("operation {operation} reads tensor {tensor}, which no earlier operation makes")]
    ReadBeforeMade {
        /// The operation.
        operation: OperationId,
        /// The tensor.
        tensor: TensorId,
    },
    /// A tensor is made twice, or is given and made.
    #[error("operation {operation} makes tensor {tensor}, which is given or made already")]
    MadeTwice {
        /// The operation.
        operation: OperationId,
        /// The tensor.
        tensor: TensorId,
    },
    /// An output is neither given nor made.
    #[error("tensor {tensor} is an output, but it is neither given nor made")]
    OutputNotMade {
        /// The tensor.
        tensor: TensorId,
    },
    /// A view without an input, or an `in_place` index without one.
    #[error("operation {operation} shares the storage of an input that it does not have")]
    NoSharedInput {
        /// The operation.
        operation: OperationId,
    },
    /// A time that is negative or not finite.
    #[error("operation {operation} takes {seconds} seconds, which is no time")]
    Time {
        /// The operation.
        operation: OperationId,
        /// Its seconds.
        seconds: f64,
    },
    /// A forward operation after one of the backward pass.
    #[error(
        "operation {operation} belongs to the forward pass, but the backward pass starts before it"
    )]
    ForwardAfterBackward {
        /// The operation.
        operation: OperationId,
    },
    /// An update of a tensor that is not given, or an update before an operation that is not an update.
    #[error(
        "operation {operation} is no update: it replaces a tensor that is not given, or others come after it"
    )]
    Update {
        /// The operation.
        operation: OperationId,
    },
    /// A transfer of a tensor without a storage made by an operation.
    #[error(
        "tensor {tensor} cannot be moved to the host: no operation of the step makes a storage for it"
    )]
    NotTransferable {
        /// The tensor.
        tensor: TensorId,
    },
    /// A transfer that is not after all other operations and next to its counterpart.
    #[error(
        "operation {operation} is a transfer: these stand behind all others, each offload with the fetch of its copy behind it"
    )]
    Transfer {
        /// The transfer.
        operation: OperationId,
    },
    /// The sum of all sizes does not fit in 62 bits.
    #[error("the sizes of all tensors add up to more than 4 EiB")]
    TooLarge,
}

impl Graph {
    /// Checks that every tensor is given or made once, before it is read, and that sizes and times can be summed.
    ///
    /// # Errors
    /// The first violation, in recorded order.
    pub fn validate(&self) -> Result<(), GraphError> {
        let mut there: Vec<bool> = self.tensors.iter().map(|tensor| tensor.given).collect();
        let mut total = u128::from(self.fixed_bytes.0);
        total += self
            .tensors
            .iter()
            .map(|tensor| u128::from(tensor.bytes.0) + u128::from(tensor.host_bytes.0))
            .sum::<u128>();
        let mut backward = false;
        let others = |o: &&Operation| o.updates.is_some() || o.transfer.is_some();
        let others = self.operations.iter().filter(others).count();
        let recorded = self.operations.len() - others;
        for (id, operation) in self.operation_ids().zip(&self.operations) {
            total += u128::from(operation.temp_bytes.0);
            for &tensor in operation.inputs.iter().chain(&operation.outputs) {
                if tensor.index() >= self.tensors.len() {
                    return Err(GraphError::UnknownTensor {
                        operation: id,
                        tensor,
                        tensors: self.tensors.len(),
                    });
                }
            }
            if let Some(&tensor) = operation.inputs.iter().find(|t| !there[t.index()]) {
                return Err(GraphError::ReadBeforeMade {
                    operation: id,
                    tensor,
                });
            }
            for &tensor in &operation.outputs {
                let again = operation.transfer == Some(Transfer::Fetch);
                if std::mem::replace(&mut there[tensor.index()], true) && !again {
                    return Err(GraphError::MadeTwice {
                        operation: id,
                        tensor,
                    });
                }
            }
            let shares = operation.view.then_some(0).into_iter();
            if shares
                .chain(operation.in_place)
                .any(|index| index >= operation.inputs.len())
            {
                return Err(GraphError::NoSharedInput { operation: id });
            }
            if !operation.seconds.0.is_finite() || operation.seconds.0 < 0.0 {
                return Err(GraphError::Time {
                    operation: id,
                    seconds: operation.seconds.0,
                });
            }
            if operation.transfer.is_none() {
                if backward && !operation.backward {
                    return Err(GraphError::ForwardAfterBackward { operation: id });
                }
                backward = operation.backward;
            }
            let given = |tensor: TensorId| {
                let tensor = self.tensors.get(tensor.index());
                tensor.is_some_and(|tensor| tensor.given)
            };
            let update = id.index() >= recorded && operation.transfer.is_none();
            if operation.updates.is_some_and(|tensor| !given(tensor))
                || operation.updates.is_some() != update
            {
                return Err(GraphError::Update { operation: id });
            }
        }
        self.check_transfers()?;
        if let Some(tensor) = self.outputs().find(|t| !there[t.index()]) {
            return Err(GraphError::OutputNotMade { tensor });
        }
        if total >= 1 << 62 {
            return Err(GraphError::TooLarge);
        }
        Ok(())
    }

    /// Checks that transfers have the form that [`with_transfers`](Self::with_transfers) creates, with existing
    /// tensors.
    fn check_transfers(&self) -> Result<(), GraphError> {
        let first = self.operations.iter().position(|o| o.transfer.is_some());
        let Some(first) = first else {
            return Ok(());
        };
        let makers = self.transferable();
        for (pair, place) in self.operations[first..].chunks(2).zip((first..).step_by(2)) {
            let operation = OperationId(place as u32);
            let wrong = GraphError::Transfer { operation };
            let [offload, fetch] = pair else {
                return Err(wrong);
            };
            let kinds = (offload.transfer, fetch.transfer);
            let (&[tensor], &[copy]) = (&offload.inputs[..], &offload.outputs[..]) else {
                return Err(wrong);
            };
            if kinds != (Some(Transfer::Offload), Some(Transfer::Fetch))
                || fetch.inputs != [copy]
                || fetch.outputs != [tensor]
            {
                return Err(wrong);
            }
            if makers[tensor.index()].is_none() {
                return Err(GraphError::NotTransferable { tensor });
            }
        }
        Ok(())
    }

    /// For each tensor that can be transferred, the operation that makes it.
    pub(super) fn transferable(&self) -> Vec<Option<OperationId>> {
        let mut makers = vec![None; self.tensors.len()];
        for (id, operation) in self.operation_ids().zip(&self.operations) {
            if !operation.view && operation.updates.is_none() && operation.transfer.is_none() {
                for output in &operation.outputs {
                    makers[output.index()] = Some(id);
                }
            }
        }
        makers
    }
}
