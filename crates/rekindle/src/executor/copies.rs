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

/// Whether a module may hold statistics that a forward moves: it has a float tensor that wants no gradient.
///
/// Frozen parameters look the same; for them a copy of its own is merely not needed.
pub(crate) fn may_hold_statistics<B: AutodiffBackend, M: Module<B>>(module: &M) -> bool {
    struct Look(bool);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Look {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 |= !param.val().is_require_grad();
        }
    }
    let mut look = Look(false);
    module.visit(&mut look);
    look.0
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
