//! The rules of a [`Graph`], checked once before anything is planned.

use super::{Graph, TensorId};
use crate::bytes::Bytes;

/// Why a graph, or a program of one, is invalid: which operation or tensor breaks which rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GraphError(pub(crate) String);

impl Graph {
    /// Checks that every tensor is given or made once, before it is read, and that sizes and times can be summed. There are
    /// no transfers: only [`linked`](Self::linked) adds them, behind all other operations.
    ///
    /// # Errors
    /// The first violation, in recorded order.
    pub fn validate(&self) -> Result<(), GraphError> {
        let mut there: Vec<bool> = self.tensors.iter().map(|tensor| tensor.given).collect();
        let mut backward = false;
        let updates = self.operations.iter().filter(|o| o.updates.is_some());
        let recorded = self.operations.len() - updates.count();
        for (id, operation) in self.operation_ids().zip(&self.operations) {
            let wrong = |said: &str| Err(GraphError(format!("operation {id} {said}")));
            let mut named = operation.inputs.iter().chain(&operation.outputs);
            if let Some(tensor) = named.find(|t| t.index() >= there.len()) {
                let tensors = there.len();
                return wrong(&format!(
                    "names tensor {tensor}, but there are {tensors} tensors"
                ));
            }
            if let Some(tensor) = operation.inputs.iter().find(|t| !there[t.index()]) {
                return wrong(&format!(
                    "reads tensor {tensor}, which no earlier operation makes"
                ));
            }
            for &tensor in &operation.outputs {
                if std::mem::replace(&mut there[tensor.index()], true) {
                    return wrong(&format!(
                        "makes tensor {tensor}, which is given or made already"
                    ));
                }
            }
            let shared = [operation.view.then_some(0), operation.in_place];
            let mut shared = shared.into_iter().flatten();
            if shared.any(|index| index >= operation.inputs.len()) {
                return wrong("shares the storage of an input that it does not have");
            }
            if operation.view && (operation.inputs.len() != 1 || !operation.repeatable) {
                return wrong("is a view: it reads one tensor, and may run again");
            }
            let seconds = operation.seconds.0;
            if !seconds.is_finite() || seconds < 0.0 {
                return wrong(&format!("takes {seconds} seconds, which is no time"));
            }
            if operation.transfer.is_some() {
                return wrong("is a transfer: only a plan adds these");
            }
            if backward && !operation.backward {
                return wrong(
                    "belongs to the forward pass, but the backward pass starts before it",
                );
            }
            backward = operation.backward;
            let replaces = |tensor: TensorId| {
                let tensor = self.tensors.get(tensor.index());
                operation.backward && tensor.is_some_and(|tensor| tensor.given)
            };
            if operation.updates.is_some() != (id.index() >= recorded)
                || !operation.updates.is_none_or(replaces)
            {
                return wrong(
                    "is no update: it replaces a tensor that is not given, others come after it, or it is of the forward pass",
                );
            }
        }
        if let Some(tensor) = self.outputs().find(|t| !there[t.index()]) {
            return Err(GraphError(format!(
                "tensor {tensor} is an output, but it is neither given nor made"
            )));
        }
        let tensors = self.tensors.iter();
        let sizes = tensors.flat_map(|one| [one.bytes, one.host_bytes]);
        let temporary = self.operations.iter().map(|one| one.temp_bytes);
        let total: Bytes = sizes.chain(temporary).chain([self.fixed_bytes]).sum();
        if total.0 >= 1 << 62 {
            let said = "the sizes of all tensors add up to more than 4 EiB";
            return Err(GraphError(said.to_owned()));
        }
        Ok(())
    }
}
