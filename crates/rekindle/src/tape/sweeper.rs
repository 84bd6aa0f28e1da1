//! Runs backwards, and sees to it that none ends where a gradient should have flowed on.

use std::collections::HashSet;

use burn::{
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Tensor, ops::FloatTensor},
};

use super::{TapeError, TapePart, guard::Sweeping};
use crate::{
    backend::CheckpointBackend,
    graph,
    swept::{NodeTree, SweptNodes},
};

/// The backwards of one step.
pub(super) struct Sweeper {
    tape: u64,
    /// Nodes where a gradient may end.
    leaves: HashSet<u64>,
    /// Nodes whose operations have been run backward: none may be reached again.
    used: HashSet<u64>,
    pub(super) gradients: GradientsParams,
}

impl Sweeper {
    pub(super) fn new(tape: u64) -> Self {
        Self {
            tape,
            leaves: HashSet::new(),
            used: HashSet::new(),
            gradients: GradientsParams::new(),
        }
    }

    /// Gradients may end at these nodes.
    pub(super) fn know(&mut self, leaves: impl IntoIterator<Item = u64>) {
        self.leaves.extend(leaves);
    }

    /// Gradients may end at this module's parameters.
    pub(super) fn know_parameters<B: CheckpointBackend, M: Module<B>>(&mut self, module: &M) {
        struct Numbers<'a>(&'a mut HashSet<u64>);
        impl<B: CheckpointBackend> ModuleVisitor<B> for Numbers<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                let primitive = param.val().into_primitive().tensor();
                self.0.insert(B::node_number(&primitive));
            }
        }
        Module::visit(module, &mut Numbers(&mut self.leaves));
    }

    /// Moves the gradients of a module's parameters out of what a sweep gave.
    pub(super) fn collect<B: CheckpointBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
        grads: &mut B::Gradients,
    ) {
        graph::collect(module, grads, &mut self.gradients);
    }

    /// One backward from `root`, and the nodes it reached. `ends` says which part lies behind which node, to name the
    /// culprit.
    pub(super) fn sweep<B: CheckpointBackend>(
        &mut self,
        root: FloatTensor<B>,
        ends: &[(u64, TapePart)],
    ) -> Result<(B::Gradients, NodeTree), TapeError> {
        let part = ends.first().map_or(TapePart::Loss, |(_, part)| *part);
        let swept = SweptNodes::new();
        let root = B::witness(root, swept.clone());
        let sweeping = Sweeping::start(self.tape);
        let grads = graph::sweep::<B>(root);
        if sweeping.met_another_tape() {
            return Err(TapeError::OtherTape { part });
        }
        drop(sweeping);
        let tree = swept.take().ok_or(TapeError::Unreadable { part })?;
        self.check(&tree, ends, part)?;
        Ok((grads, tree))
    }

    /// Every node that a gradient came to must have passed it on in this sweep, or be a leaf.
    fn check(
        &mut self,
        tree: &NodeTree,
        ends: &[(u64, TapePart)],
        part: TapePart,
    ) -> Result<(), TapeError> {
        let lost = tree
            .values()
            .flatten()
            .find(|node| !tree.contains_key(node) && !self.leaves.contains(node));
        if let Some(&lost) = lost {
            let culprit = ends.iter().find(|(end, _)| reaches(tree, *end, lost));
            let part = culprit.map_or(part, |(_, part)| *part);
            return Err(if self.used.contains(&lost) {
                TapeError::Shared { part }
            } else {
                TapeError::Consumed { part }
            });
        }
        for (&node, parents) in tree {
            if parents.is_empty() {
                self.leaves.insert(node);
            } else {
                self.used.insert(node);
            }
        }
        Ok(())
    }
}

/// Whether `node` was made from `wanted`.
fn reaches(tree: &NodeTree, node: u64, wanted: u64) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        if node == wanted {
            return true;
        }
        if seen.insert(node) {
            open.extend(tree.get(&node).into_iter().flatten());
        }
    }
    false
}
