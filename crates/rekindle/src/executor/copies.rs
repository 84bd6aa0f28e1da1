//! Which copy of a layer runs.
//!
//! burn's layers carry two kinds of state: parameters, whose autodiff leaves live in the module, and running
//! statistics, which clones share. Four rules follow.
//!
//! - An untracked run uses a copy without gradients. It stays on the device with autodiff: dropout and batch
//!   normalisation behave as in training only there, and some operations are computed in another way, and so rounded
//!   in another way, elsewhere.
//! - The first run of a stage in a step, tracked or not, uses the layer's own statistics and so moves them; every
//!   later run uses a copy with statistics of its own, which are dropped with it.
//! - A tracked run uses the layer itself, whose leaves are there already. Only where a later run of a layer with
//!   statistics is tracked does it need fresh leaves.
//! - A run inside another graph's backward always needs fresh leaves.

use std::borrow::Cow;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{GradientCheckpointingStrategy as Strategy, Tensor},
};

use crate::balanced::SetStrategy;

/// What a module's float tensors say of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tensors {
    /// One wants a gradient: the module has something to train.
    pub(crate) trains: bool,
    /// One wants none, so that it may be a statistic which a forward moves. Frozen parameters look the same; for them a
    /// copy of its own is merely not needed.
    pub(crate) may_hold_statistics: bool,
}

impl Tensors {
    /// Looks at every tensor. That also initialises lazy parameters, whose memory would else come in the first forward.
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let mut tensors = Self::default();
        module.visit(&mut tensors);
        tensors
    }
}

impl ModuleVisitor for Tensors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let trains = param.val().is_require_grad();
        self.trains |= trains;
        self.may_hold_statistics |= !trains;
    }
}

/// The copy for a run without a graph, on the device with autodiff.
pub(crate) fn untracked<L: Module>(layer: &L, detach: bool) -> L {
    if detach {
        fresh(layer).no_grad()
    } else {
        layer.clone().no_grad()
    }
}

/// The layer or copy for a run that records a graph.
pub(crate) fn tracked<L: Module>(layer: &L, detach: bool) -> Cow<'_, L> {
    if detach {
        Cow::Owned(fresh(layer))
    } else {
        Cow::Borrowed(layer)
    }
}

/// A copy with the same values and ids, leaves of its own and statistics of its own.
pub(crate) fn fresh<M: Module>(module: &M) -> M {
    struct Find(Option<Strategy>);
    impl ModuleVisitor for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 = self.0.or(param.val().gradient_checkpointing_strategy());
        }
    }
    let mut find = Find(None);
    module.visit(&mut find);
    let fresh = module.valid().train();
    match find.0 {
        // What `train` gives.
        None | Some(Strategy::Disabled) => fresh,
        Some(strategy) => fresh.map(&mut SetStrategy::new(strategy)),
    }
}
