//! The one thing that checkpointing asks of an autodiff backend beyond what burn offers: a backward that starts from
//! a given gradient.
//!
//! A segment's backward must start from the gradient of the segment's output, which the later segments have already
//! produced. burn starts every backward from a scalar with gradient one. [`seed_backward`] bridges the two with a
//! custom operation: its forward is a scalar that nobody reads, its backward hands the upstream gradient to its
//! parent as it is. So no arithmetic is added, and gradients equal the plain run's bit for bit.
//!
//! [`seed_backward`]: CheckpointBackend::seed_backward

use burn::tensor::{
    Shape, TensorMetadata,
    backend::{AutodiffBackend, Backend},
    ops::FloatTensor,
};
use burn_autodiff::{
    Autodiff,
    checkpoint::{
        base::Checkpointer,
        strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
    },
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

/// An autodiff backend whose backward can start from any gradient. Every `Autodiff<B, C>` is one.
pub trait CheckpointBackend: AutodiffBackend {
    /// The same backend, its graphs recorded by burn's balanced strategy (see [`balanced`](crate::balanced)): the
    /// same tensors and gradients, so that pieces of one step can be recorded either way.
    type Balanced: CheckpointBackend<
            InnerBackend = Self::InnerBackend,
            Device = Self::Device,
            FloatTensorPrimitive = Self::FloatTensorPrimitive,
            IntTensorPrimitive = Self::IntTensorPrimitive,
            BoolTensorPrimitive = Self::BoolTensorPrimitive,
            Gradients = Self::Gradients,
        >;

    /// Whether a backward from this tensor reaches anything that asked for a gradient.
    fn is_tracked(tensor: &FloatTensor<Self>) -> bool;

    /// A scalar whose backward gives `output` the gradient `upstream` (of the same shape as `output`).
    fn seed_backward(
        output: FloatTensor<Self>,
        upstream: FloatTensor<Self::InnerBackend>,
    ) -> FloatTensor<Self>;
}

impl<I, C> CheckpointBackend for Autodiff<I, C>
where
    I: Backend,
    C: CheckpointStrategy,
{
    type Balanced = Autodiff<I, BalancedCheckpointing>;

    fn is_tracked(tensor: &FloatTensor<Self>) -> bool {
        tensor.is_tracked()
    }

    fn seed_backward(
        output: FloatTensor<Self>,
        upstream: FloatTensor<Self::InnerBackend>,
    ) -> FloatTensor<Self> {
        let device = I::float_device(&upstream);
        let scalar = I::float_zeros(Shape::new([1]), &device, upstream.dtype().into());
        match SeedBackward
            .prepare::<NoCheckpointing>([output.node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(upstream, scalar),
            OpsKind::UnTracked(prep) => prep.finish(scalar),
        }
    }
}

/// Gives its parent the gradient it was made with, whatever gradient reaches itself.
#[derive(Debug)]
struct SeedBackward;

impl<I: Backend> Backward<I, 1> for SeedBackward {
    type State = FloatTensor<I>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        grads.consume::<I>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<I>(parent.id, ops.state);
        }
    }
}
