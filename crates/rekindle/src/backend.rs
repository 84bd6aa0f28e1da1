//! The one thing that checkpointing asks of an autodiff backend beyond what burn offers: a backward that starts from
//! a given gradient.
//!
//! A segment's backward must start from the gradient of the segment's output, which the later segments have already
//! produced. burn starts every backward from a scalar with gradient one. [`seed_backward`] bridges the two with a
//! custom operation: its forward is a scalar that nobody reads, its backward hands the upstream gradient to its
//! parent as it is. So no arithmetic is added, and gradients equal the plain run's bit for bit.
//!
//! [`seed_backward`]: CheckpointBackend::seed_backward

use std::{fmt, sync::Arc};

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

use crate::swept::SweptNodes;

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

    /// The same tensor with a border in the graph behind it: a backward that passes it makes the call.
    fn border(tensor: FloatTensor<Self>, call: BorderCall) -> FloatTensor<Self>;

    /// The number of the tensor's node in the graph. It is larger than the numbers of all nodes that the tensor was
    /// made from.
    fn node_number(tensor: &FloatTensor<Self>) -> u64;

    /// The same place in the graph, with a value of one element that means nothing: holds no memory of the tensor's.
    /// Such a tensor serves to start a backward and to read a gradient, not to compute.
    fn hollow(tensor: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// The same scalar, for the root of a backward: the backward notes in `swept` what it reaches.
    fn witness(root: FloatTensor<Self>, swept: SweptNodes) -> FloatTensor<Self>;
}

/// What to do when a backward passes a border.
#[derive(Clone)]
pub struct BorderCall(Arc<dyn Fn() + Send + Sync>);

impl BorderCall {
    /// Calls `call`, which must not run tensor operations that are tracked.
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for BorderCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BorderCall")
    }
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

    fn border(tensor: FloatTensor<Self>, call: BorderCall) -> FloatTensor<Self> {
        match Border
            .prepare::<NoCheckpointing>([tensor.node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(call, tensor.primitive),
            OpsKind::UnTracked(prep) => prep.finish(tensor.primitive),
        }
    }

    fn node_number(tensor: &FloatTensor<Self>) -> u64 {
        tensor.node.id.value
    }

    fn hollow(tensor: &FloatTensor<Self>) -> FloatTensor<Self> {
        let device = I::float_device(&tensor.primitive);
        let mut hollow = tensor.clone();
        hollow.primitive = I::float_empty(Shape::new([1]), &device, tensor.dtype().into());
        hollow
    }

    fn witness(root: FloatTensor<Self>, swept: SweptNodes) -> FloatTensor<Self> {
        match Witness
            .prepare::<NoCheckpointing>([root.node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(swept, root.primitive),
            OpsKind::UnTracked(prep) => prep.finish(root.primitive),
        }
    }
}

/// Passes the gradient on as it is, and notes which nodes this backward reaches.
#[derive(Debug)]
struct Witness;

impl<I: Backend> Backward<I, 1> for Witness {
    type State = SweptNodes;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<I>(&ops.node);
        ops.state.note(checkpointer);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<I>(parent.id, gradient);
        }
    }
}

/// Passes the gradient on as it is, and makes a call.
#[derive(Debug)]
struct Border;

impl<I: Backend> Backward<I, 1> for Border {
    type State = BorderCall;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<I>(&ops.node);
        (ops.state.0)();
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<I>(parent.id, gradient);
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
