//! A model whose parameters are lent to a running step, which updates them in its backward pass.
//!
//! Only the step's interpreter holds the trained parameters, so updates can run in place, and no old value is kept
//! beside the new one. Until the step is done, the model has empty tensors instead.

use std::collections::HashMap;

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{DispatchTensor, Tensor},
};

use super::{
    bridge::Interpreter,
    exchange::TimedExchange,
    leaf::{Leaf, Placed, again},
    optimizer::Optimizer,
    places::{Parameter, replaced},
    rank::of_rank,
    recording::Recording,
};
use crate::reduce::{ReduceError, Sending, shards::Shards};

/// A model whose parameters are lent to a step. Parameters are found by their tensor numbers in the recording.
pub(super) struct Lent {
    updated: HashMap<usize, DispatchTensor>,
    /// The parameter whose update panicked: it has neither an old value nor a new one.
    lost: Option<usize>,
}

impl Lent {
    /// Removes the parameters that a recording updates from `model`; the interpreter already holds them.
    pub(super) fn take<M: Module>(model: &mut M, recording: &Recording) -> Self {
        let places = recording.updated_places();
        *model = replaced(model.clone(), |place, old| {
            places.get(&place)?;
            Some(of_rank!(old, D => {
                let old = Tensor::<D>::from_dispatch(old.clone());
                let empty = Tensor::<D>::empty([0; D], (&old.device(), old.dtype()));
                Leaf::of(&old).again(empty.without_autodiff()).into_dispatch()
            }))
        });
        Self {
            updated: HashMap::new(),
            lost: None,
        }
    }

    /// Number of parameters with new values.
    pub(super) fn updated(&self) -> usize {
        self.updated.len()
    }

    /// Updates one parameter.
    pub(super) fn update<O: Optimizer>(
        &mut self,
        parameter: &Parameter,
        value: DispatchTensor,
        gradient: DispatchTensor,
        rate: f64,
        optimizer: &mut O,
    ) {
        let (id, number) = (parameter.id, parameter.tensor);
        self.lost = Some(number);
        let updated = of_rank!(&value, D => {
            // Not as a leaf, of which burn would keep a graph until the next backward pass.
            let param = Param::initialized(id, Tensor::<D>::from_dispatch(value).autodiff());
            let mut gradients = GradientsParams::new();
            gradients.register::<D>(id, Tensor::from_dispatch(gradient));
            let placed = Placed { path: &parameter.path, param };
            let (_, updated, _) = optimizer.step(rate, placed, gradients).param.consume();
            updated.without_autodiff().into_dispatch()
        });
        self.updated.insert(number, updated);
        self.lost = None;
    }

    /// Exchanges parameters between ranks that divide the updates.
    pub(super) fn share(
        &mut self,
        recording: &Recording,
        interpreter: &mut dyn Interpreter,
        shards: &Shards,
    ) -> Result<TimedExchange, ReduceError> {
        let mut due: HashMap<_, _> = shards.owners().iter().copied().collect();
        let mut sending = Sending::new(shards.reducer());
        for (_, one) in recording.updated() {
            let Some(owner) = due.remove(&one.id) else {
                continue;
            };
            if self.lost == Some(one.tensor) {
                sending.lost(owner);
                continue;
            }
            let value = self
                .updated
                .remove(&one.tensor)
                .unwrap_or_else(|| interpreter.hand_out(&recording.tensors.last_read(one.tensor)));
            let value = of_rank!(&value, D => {
                let own = Tensor::<D>::from_dispatch(value);
                sending.value(owner, own).into_dispatch()
            });
            self.updated.insert(one.tensor, value);
        }
        sending.done()
    }

    /// Puts all parameters back into the model; those that were not updated are taken from the interpreter.
    pub(super) fn put_back<M: Module>(
        self,
        model: &mut M,
        recording: &Recording,
        interpreter: &mut dyn Interpreter,
    ) {
        let mut values = self.updated;
        for (_, one) in recording.updated() {
            if self.lost != Some(one.tensor) {
                values.entry(one.tensor).or_insert_with(|| {
                    interpreter.hand_out(&recording.tensors.last_read(one.tensor))
                });
            }
        }
        let places = recording.updated_places();
        // The places of a tied parameter have one leaf again.
        let mut leaves: HashMap<usize, DispatchTensor> = HashMap::new();
        *model = replaced(model.clone(), |place, old| {
            let number = *places.get(&place)?;
            if let Some(leaf) = leaves.get(&number) {
                return Some(leaf.clone());
            }
            let leaf = again(old, values.remove(&number)?);
            leaves.insert(number, leaf.clone());
            Some(leaf)
        });
    }
}
