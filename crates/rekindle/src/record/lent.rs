//! A model whose parameters are lent to a running step, which updates them in its backward pass.
//!
//! Only the step's interpreter holds the trained parameters, so updates can run in place, and no old value is kept
//! beside the new one. Until the step is done, the model has empty tensors instead.

use std::collections::HashMap;

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    optim::GradientsParams,
    tensor::{DispatchTensor, Tensor},
};

use super::{
    bridge::Interpreter,
    leaf::Leaf,
    optimizer::Optimizer,
    placed::Placed,
    rank::of_rank,
    recording::{Parameter, Recording},
};
use crate::reduce::{ReduceError, Shards, SharedReading};

/// A model whose parameters are lent to a step.
pub(super) struct Lent {
    /// Leaf properties of the parameters that the step updates.
    leaves: HashMap<ParamId, Leaf>,
    updated: HashMap<ParamId, DispatchTensor>,
    /// The parameter whose update panicked: it has neither an old value nor a new one.
    lost: Option<ParamId>,
}

impl Lent {
    /// Removes the parameters that a recording updates from `model`; the interpreter already holds them.
    pub(super) fn take<M: Module>(model: &mut M, recording: &Recording) -> Self {
        struct Take<'a>(&'a mut HashMap<ParamId, Leaf>);
        impl ModuleMapper for Take<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if !self.0.contains_key(&param.id) {
                    return param;
                }
                let (id, value, mapper) = param.consume();
                let leaf = Leaf::of(&value);
                let place = Tensor::empty([0; D], (&value.device(), value.dtype()));
                let place = leaf.again(place.without_autodiff());
                self.0.insert(id, leaf);
                Param::from_mapped_value(id, place, mapper)
            }
        }
        let updated = recording.updated();
        let mut leaves = updated.map(|one| (one.id, Leaf::untrained())).collect();
        *model = model.clone().map(&mut Take(&mut leaves));
        Self {
            leaves,
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
        let id = parameter.id;
        let Some(leaf) = self.leaves.get(&id) else {
            return;
        };
        self.lost = Some(id);
        let updated = of_rank!(&value, D => {
            let param = Param::initialized(id, leaf.again(Tensor::<D>::from_dispatch(value)));
            let mut gradients = GradientsParams::new();
            gradients.register::<D>(id, Tensor::from_dispatch(gradient));
            let placed = Placed { path: &parameter.path, param };
            let (_, updated, _) = optimizer.step(rate, placed, gradients).param.consume();
            updated.without_autodiff().into_dispatch()
        });
        self.updated.insert(id, updated);
        self.lost = None;
    }

    /// Exchanges parameters between ranks that divide the updates.
    pub(super) fn share(
        &mut self,
        recording: &Recording,
        interpreter: &mut dyn Interpreter,
        shards: &Shards,
    ) -> Result<SharedReading, ReduceError> {
        let mut sharing = shards.sharing();
        for one in recording.updated() {
            if self.lost == Some(one.id) {
                sharing.lost(one.id);
            } else if sharing.is_due(one.id) {
                let value = self.updated.remove(&one.id).unwrap_or_else(|| {
                    interpreter.hand_out(&recording.tensors.last_read(one.tensor))
                });
                let value = of_rank!(&value, D => {
                    let own = Tensor::<D>::from_dispatch(value);
                    sharing.value(one.id, own).into_dispatch()
                });
                self.updated.insert(one.id, value);
            }
        }
        sharing.done()
    }

    /// Puts all parameters back into the model; those that were not updated are taken from the interpreter.
    pub(super) fn put_back<M: Module>(
        self,
        model: &mut M,
        recording: &Recording,
        interpreter: &mut dyn Interpreter,
    ) {
        struct PutBack(HashMap<ParamId, DispatchTensor>);
        impl ModuleMapper for PutBack {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(value) = self.0.get(&param.id) else {
                    return param;
                };
                let value = Tensor::<D>::from_dispatch(value.clone());
                let (id, place, mapper) = param.consume();
                Param::from_mapped_value(id, Leaf::of(&place).again(value), mapper)
            }
        }
        let mut values = self.updated;
        for one in recording.updated() {
            if self.lost != Some(one.id) {
                values.entry(one.id).or_insert_with(|| {
                    interpreter.hand_out(&recording.tensors.last_read(one.tensor))
                });
            }
        }
        *model = model.clone().map(&mut PutBack(values));
    }
}
