//! Which copy of a layer runs.
//!
//! burn's layers carry two kinds of state: parameters, whose autodiff leaves live in the module, and running
//! statistics, which clones share. Four rules follow.
//!
//! - An untracked run uses a copy without gradients. It stays on the device with autodiff: only there do dropout and
//!   batch normalisation behave as in training, and on other devices some operations are computed and rounded
//!   differently.
//! - The first run of a stage in a step, tracked or not, uses the layer's own statistics and so updates them. Every
//!   later run uses a copy with separate statistics, which are dropped with the copy.
//! - A tracked run uses the layer itself, which already has leaves. Only a tracked later run of a layer with statistics
//!   needs fresh leaves.
//! - A run inside another graph's backward pass always needs fresh leaves.

use std::borrow::Cow;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{GradientCheckpointingStrategy as Strategy, Tensor},
};

use crate::balanced::SetStrategy;

/// Properties of a module that follow from its float tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ModuleTensors {
    /// A tensor requires a gradient: the module has something to train.
    pub(crate) trains: bool,
    /// A tensor requires no gradient, so it may be a statistic that a forward pass updates. Frozen parameters look the
    /// same; for them a separate copy is unnecessary but harmless.
    pub(crate) may_hold_statistics: bool,
}

impl ModuleTensors {
    /// Visits every tensor. This also initialises lazy parameters, which would otherwise be allocated in the first
    /// forward pass.
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let mut tensors = Self::default();
        module.visit(&mut tensors);
        tensors
    }
}

impl ModuleVisitor for ModuleTensors {
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

/// A copy with the same values and ids, but separate leaves and statistics.
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
        // The strategy that `train` sets.
        None | Some(Strategy::Disabled) => fresh,
        Some(strategy) => fresh.map(&mut SetStrategy::new(strategy)),
    }
}
