//! Running statistics as they were before a step, so that a step can be abandoned: a forward moves them, and nothing else
//! of a model before the update.
//!
//! Memory: while a step runs they are there twice.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::{DispatchTensor, Tensor},
};
use rekindle_plan::Bytes;

use crate::record::Put;

/// What a held tensor takes beside its numbers. Seen on the CPU backend.
const HELD_BYTES: u64 = 256;

/// Which tensors of a model are running statistics: those that want no gradient.
#[derive(Default)]
pub struct Statistics {
    ids: HashSet<ParamId>,
    bytes: u64,
}

/// Their values before a step.
pub struct Before(HashMap<ParamId, DispatchTensor>);

impl Statistics {
    /// Those of a model with autodiff.
    #[must_use]
    pub fn of(model: &impl Module) -> Self {
        let mut found = Self::default();
        model.visit(&mut found);
        found
    }

    /// What their values take while they are held.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Their values now. Updates that wait are merged first, as the next forward would.
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
    /// The model with these values. Its leaves are new: burn keeps what is left of a step's graph as long as a leaf of
    /// that graph is there.
    #[must_use]
    pub fn put_back<M: Module>(self, model: M) -> M {
        // Statistics of its own: an update that waits in the old ones would come on top.
        let own = model.valid().train();
        drop(model);
        own.map(&mut Put(self.0))
    }
}
