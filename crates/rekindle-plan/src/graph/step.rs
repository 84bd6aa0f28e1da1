//! A recorded training step: operations on tensors.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// The number of a tensor: its place in [`Graph::tensors`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(derive_more::Display)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// The number of an operation: its place in [`Graph::operations`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(derive_more::Display)]
#[serde(transparent)]
pub struct OperationId(pub u32);

impl TensorId {
    /// The place in [`Graph::tensors`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl OperationId {
    /// The place in [`Graph::operations`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One training step, as it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The operations in recorded order: each reads only tensors that are given or made before it.
    pub operations: Vec<Operation>,
    /// Resident at every moment: given tensors, parameters, optimizer state, the runtime's own.
    pub fixed_bytes: Bytes,
}

/// A tensor of a [`Graph`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The size of its storage, where an operation makes a new one for it.
    pub bytes: Bytes,
    /// There before the first operation: never made, never freed, and counted in [`Graph::fixed_bytes`] alone.
    pub given: bool,
    /// Must be there after the last operation.
    pub output: bool,
    /// Of a tensor that lies in the host's memory, what it takes there; see [`Graph::linked`].
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub host_bytes: Bytes,
}

/// An operation of a [`Graph`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// What it reads; a tensor may occur twice.
    pub inputs: Vec<TensorId>,
    /// What it makes: tensors that no other operation makes.
    pub outputs: Vec<TensorId>,
    /// The outputs share the storage of the first input (reshape, transpose): no new storage.
    pub view: bool,
    /// The index in `inputs` whose storage the first output takes over, where that is possible: it is the input's
    /// last use, the input occurs once, no other live tensor shares its storage, it is not given, and the sizes are
    /// equal.
    pub in_place: Option<usize>,
    /// How long it runs.
    pub seconds: Seconds,
    /// Bytes beside inputs and outputs while it runs.
    pub temp_bytes: Bytes,
    /// Whether running it again makes the same outputs; false for random draws, which run once.
    pub repeatable: bool,
    /// The marked stage of the model that recorded it. Does not fall in recorded order of the forward pass; in the
    /// backward pass a few operations may have one.
    pub stage: Option<u32>,
    /// Whether it belongs to the backward pass, all of which is recorded after the forward pass.
    pub backward: bool,
    /// The given tensor whose value it replaces, as the update of a parameter does: nothing reads the tensor, or a view
    /// of it, after it. Updates stand behind all other operations of a graph; a program runs each as soon as its inputs
    /// are made and nothing needs the old value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<TensorId>,
    /// Whether it moves a tensor to the host's memory or back. Transfers stand behind all other operations of a graph, and
    /// a fetch makes a tensor that another operation makes too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
}

impl Default for Operation {
    /// A repeatable forward operation without tensors and costs.
    fn default() -> Operation {
        Operation {
            inputs: Vec::new(),
            outputs: Vec::new(),
            view: false,
            in_place: None,
            seconds: Seconds::ZERO,
            temp_bytes: Bytes::ZERO,
            repeatable: true,
            stage: None,
            backward: false,
            updates: None,
            transfer: None,
        }
    }
}

impl Graph {
    /// The tensor with this number.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// The operation with this number.
    ///
    /// # Panics
    /// If there is no such operation.
    pub fn operation(&self, id: OperationId) -> &Operation {
        &self.operations[id.index()]
    }

    /// The numbers of all operations, in recorded order.
    pub(crate) fn operation_ids(&self) -> impl Iterator<Item = OperationId> + use<> {
        (0..self.operations.len() as u32).map(OperationId)
    }

    /// The tensor whose storage each tensor shares through views; itself if no view is involved.
    pub fn roots(&self) -> Vec<TensorId> {
        let mut roots: Vec<TensorId> = self.tensor_ids().collect();
        for operation in self.operations.iter().filter(|one| one.view) {
            let root = operation.inputs.first().map(|input| roots[input.index()]);
            for output in &operation.outputs {
                roots[output.index()] = root.unwrap_or(*output);
            }
        }
        roots
    }

    /// The numbers of all tensors.
    pub(crate) fn tensor_ids(&self) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// The range of the updates in [`operations`](Self::operations): recorded operations come before them, transfers after.
    pub fn updates(&self) -> Range<usize> {
        let recorded = |one: &Operation| one.updates.is_none() && one.transfer.is_none();
        let start = self.operations.partition_point(recorded);
        let updates = self.operations[start..].partition_point(|one| one.updates.is_some());
        start..start + updates
    }

    /// The tensors that must exist after the last operation.
    pub fn outputs(&self) -> impl DoubleEndedIterator<Item = TensorId> + Clone {
        self.tensor_ids().filter(|&t| self.tensor(t).output)
    }
}

/// What an operation of a graph does with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// Copies a tensor to the host.
    Offload,
    /// Makes a tensor from its copy on the host.
    Fetch,
}
