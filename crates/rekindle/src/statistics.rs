//! Running statistics from before a step, so that a step can be abandoned. Before the update, a forward pass changes
//! nothing else in a model.
//!
//! Memory: while a step runs, statistics are held twice.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::{DispatchTensor, Tensor},
};
use rekindle_plan::Bytes;

use crate::record::Put;

/// Overhead of a held tensor, measured on the CPU backend.
const HELD_BYTES: u64 = 256;

/// The running statistics of a model: its tensors that require no gradient.
#[derive(Default)]
pub struct Statistics {
    ids: HashSet<ParamId>,
    bytes: u64,
}

/// Their values before a step.
pub struct Before(HashMap<ParamId, DispatchTensor>);

impl Statistics {
    /// Finds the statistics of a model with autodiff.
    #[must_use]
    pub fn of(model: &impl Module) -> Self {
        let mut found = Self::default();
        model.visit(&mut found);
        found
    }

    /// Memory of the values while they are held.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Their current values. Pending updates are merged first, as the next forward pass would do.
    #[must_use]
    pub fn before(&self, model: &impl Module) -> Before {
        struct Collect<'a>(&'a HashSet<ParamId>, HashMap<ParamId, DispatchTensor>);
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.0.contains(&param.id) {
                    self.1.insert(param.id, param.val().into_dispatch());
                }
            }
        }
        let mut values = Collect(&self.ids, HashMap::with_capacity(self.ids.len()));
        if !self.ids.is_empty() {
            model.valid().visit(&mut values);
        }
        Before(values.1)
    }
}

impl ModuleVisitor for Statistics {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            let numbers = param.shape().num_elements() * param.val().dtype().size();
            self.bytes += numbers as u64 + HELD_BYTES;
            self.ids.insert(param.id);
        }
    }
}

impl Before {
    /// Restores these values in the model. The returned model has new leaves: burn keeps the rest of a step's graph as
    /// long as a leaf of it exists.
    #[must_use]
    pub fn put_back<M: Module>(self, model: M) -> M {
        // Use new statistics: a pending update in the old ones would be applied on top.
        let own = model.valid().train();
        drop(model);
        own.map(&mut Put(self.0))
    }
}
