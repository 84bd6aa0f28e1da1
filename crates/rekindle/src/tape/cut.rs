//! Where the graph is cut: the ends of the graph before, the leaves of the graph after.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{
    Tensor, TensorPrimitive,
    backend::{AutodiffBackend, Backend},
    ops::{FloatTensor, FloatTensorOps},
};

use super::{TapeError, TapePart, guard, sweeper::Sweeper};
use crate::{
    activation::{Activation, ActivationMapper, ActivationVisitor},
    backend::{BorderCall, CheckpointBackend},
    graph::Upstream,
};

/// A gradient, on the backend without a graph.
pub(super) type Gradient<B> = FloatTensor<<B as AutodiffBackend>::InnerBackend>;

/// From the gradient of what lies after a cut to that of what lies before.
pub(super) type Recompute<B> =
    Box<dyn FnOnce(Upstream<B>, &mut Sweeper) -> Result<Upstream<B>, TapeError>>;

/// A place where the graph is cut. It holds no activation but what `recompute` owns.
pub(super) struct Cut<B: CheckpointBackend> {
    pub(super) part: TapePart,
    /// For each float tensor before the cut its place in the graph, if a gradient can flow on there.
    pub(super) ends: Vec<Option<FloatTensor<B>>>,
    /// The float tensors after the cut.
    pub(super) leaves: Vec<Leaf<B>>,
    /// `None`: the same tensors on both sides.
    pub(super) recompute: Option<Recompute<B>>,
}

impl<B: CheckpointBackend> Cut<B> {
    /// A number between those of the nodes that the leaves were made from and those of the nodes made from them.
    pub(super) fn number(&self) -> u64 {
        let numbers = self.leaves.iter().map(|leaf| B::node_number(&leaf.leaf));
        numbers.min().unwrap_or(0)
    }
}

/// A leaf of the graph after a cut, without its value, and the gradient that has come to it so far.
pub(super) struct Leaf<B: CheckpointBackend> {
    leaf: FloatTensor<B>,
    /// What the model's code gets: the leaf with a border behind it.
    pub(super) guarded: FloatTensor<B>,
    pub(super) gradient: Option<Gradient<B>>,
}

impl<B: CheckpointBackend> Leaf<B> {
    pub(super) fn add(&mut self, gradient: Gradient<B>) {
        self.gradient = Some(match self.gradient.take() {
            None => gradient,
            Some(earlier) => B::InnerBackend::float_add(gradient, earlier),
        });
    }

    /// Adds what a sweep brought. The border passes it on to the leaf once; later sweeps leave it at the border.
    pub(super) fn take(&mut self, grads: &mut B::Gradients) {
        for place in [self.leaf.clone(), self.guarded.clone()] {
            if let Some(gradient) = B::grad_remove(&place, grads) {
                self.add(gradient);
            }
        }
    }

    /// The numbers of its nodes.
    pub(super) fn numbers(&self) -> [u64; 2] {
        [&self.leaf, &self.guarded].map(B::node_number)
    }
}

/// A number for a new tape.
pub(super) fn new_tape() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs `each` on all float tensors, in visiting order.
pub(super) fn each_float<B: Backend, A: Activation<B>>(
    activation: &A,
    each: impl FnMut(FloatTensor<B>),
) {
    struct Each<F>(F);
    impl<B: Backend, F: FnMut(FloatTensor<B>)> ActivationVisitor<B> for Each<F> {
        fn float<const D: usize>(&mut self, tensor: &Tensor<B, D>) {
            (self.0)(tensor.clone().into_primitive().tensor());
        }
    }
    activation.visit(&mut Each(each));
}

/// Replaces the float tensors for which `chosen` holds, in visiting order.
pub(super) fn replace<B: Backend, A: Activation<B>>(
    activation: A,
    chosen: &[bool],
    replace: impl FnMut(FloatTensor<B>) -> FloatTensor<B>,
) -> A {
    struct Replace<'a, F> {
        chosen: std::slice::Iter<'a, bool>,
        replace: F,
    }
    impl<B: Backend, F: FnMut(FloatTensor<B>) -> FloatTensor<B>> ActivationMapper<B>
        for Replace<'_, F>
    {
        fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D> {
            if self.chosen.next() != Some(&true) {
                return tensor;
            }
            let primitive = (self.replace)(tensor.into_primitive().tensor());
            Tensor::from_primitive(TensorPrimitive::Float(primitive))
        }
    }
    activation.map(&mut Replace {
        chosen: chosen.iter(),
        replace,
    })
}

/// The same value as the start of a graph.
pub(super) fn fresh_leaf<B: AutodiffBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    B::float_set_require_grad(B::from_inner(B::inner(tensor)), true)
}

/// The same value on the far side of a cut: what the model's code gets, and what the tape keeps.
pub(super) fn beyond<B: CheckpointBackend>(
    tape: u64,
    tensor: FloatTensor<B>,
) -> (FloatTensor<B>, Leaf<B>) {
    let leaf = fresh_leaf::<B>(tensor);
    let hollow = B::hollow(&leaf);
    let guarded = B::border(leaf, BorderCall::new(move || guard::pass(tape)));
    let kept = Leaf {
        leaf: hollow,
        guarded: B::hollow(&guarded),
        gradient: None,
    };
    (guarded, kept)
}
