//! Which copy of a layer runs.
//!
//! burn's layers carry two kinds of state: parameters, whose autodiff leaves live in the module, and running
//! statistics, which clones share. Three rules follow.
//!
//! - An untracked run uses a copy without gradients: on the autodiff backend, so that dropout and batch
//!   normalisation behave as in training, but recording nothing.
//! - The first run of a stage in a step, tracked or not, uses the layer's own statistics and so moves them; every
//!   later run uses a copy with statistics of its own, which are dropped with it.
//! - A tracked run uses the layer itself, whose leaves are there already. Only where a later run of a layer with
//!   statistics is tracked does it need fresh leaves: burn merges the graphs of all leaves that one backward reaches
//!   and walks every live graph at each backward, so fresh leaves in every segment would cost time that grows with
//!   the square of the depth.

use std::borrow::Cow;

use burn::{
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    tensor::{Tensor, backend::AutodiffBackend},
};

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
    /// Looks at every tensor. That also initialises lazy parameters, which would draw anew in each copy.
    pub(crate) fn of<B: AutodiffBackend, M: Module<B>>(module: &M) -> Self {
        let mut tensors = Self::default();
        module.visit(&mut tensors);
        tensors
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Tensors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let trains = param.val().is_require_grad();
        self.trains |= trains;
        self.may_hold_statistics |= !trains;
    }
}

/// The copy for a run without a graph.
pub(crate) fn untracked<B: AutodiffBackend, L: AutodiffModule<B>>(layer: &L, detach: bool) -> L {
    if detach {
        L::from_inner(layer.valid()).no_grad()
    } else {
        layer.clone().no_grad()
    }
}

/// The layer or copy for a run that records a graph.
pub(crate) fn tracked<B: AutodiffBackend, L: AutodiffModule<B>>(
    layer: &L,
    detach: bool,
) -> Cow<'_, L> {
    if detach {
        Cow::Owned(L::from_inner(layer.valid()))
    } else {
        Cow::Borrowed(layer)
    }
}
