//! Custom operations in burn's autodiff graph, for modules that run unrecorded. Only this file and `known_gradient.rs`
//! use burn-autodiff's extension interface.
//!
//! | operation | forward | backward |
//! |---|---|---|
//! | [`seed_backward`] | an unused scalar | gives its input a gradient that was computed before |
//! | [`border`] | the input | passes the gradient on and calls a function |
//!
//! A segment's backward pass must start from the gradient of the segment's output, which the later segments have
//! already produced. burn starts every backward pass from a scalar with gradient one; [`seed_backward`] bridges the
//! two. Neither adds arithmetic, so gradients equal the plain run's bit for bit.

use std::{fmt, sync::Arc};

#[cfg(feature = "cubecl")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::{
    backend::{
        Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata,
        backend_extension, tensor::FloatTensor,
    },
    tensor::{Shape, Tensor},
};
use burn_autodiff::{
    NodeId,
    checkpoint::{
        base::Checkpointer,
        strategy::{CheckpointStrategy, NoCheckpointing},
    },
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

/// A scalar whose backward pass gives `output` the gradient `upstream`, which has `output`'s shape and no graph.
pub(crate) fn seed_backward(output: DispatchTensor, upstream: DispatchTensor) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as GraphOps>::seed_backward(output, upstream))
}

/// The same tensor with a border in its graph: a backward pass through the border runs the call.
pub(crate) fn border<const D: usize>(tensor: Tensor<D>, call: BorderCall) -> Tensor<D> {
    let tensor = tensor.into_dispatch();
    Tensor::from_dispatch(<Dispatch as GraphOps>::border(tensor, call))
}

/// A counter that increases by one with every graph node that the process creates, and with every call.
pub(crate) fn node_counter() -> u64 {
    NodeId::new().value
}

/// The function to call when a backward pass reaches a border.
///
/// burn holds a lock on the graph during the call: an operation on a tensor of that graph would deadlock.
#[derive(Clone)]
pub(crate) struct BorderCall(Arc<dyn Fn() + Send + Sync>);

impl BorderCall {
    pub(crate) fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for BorderCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BorderCall")
    }
}

/// The operations of this file for each backend. Without autodiff there is no graph to add them to.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cubecl"), Autodiff)]
pub(crate) trait GraphOps: Backend {
    fn seed_backward(output: FloatTensor<Self>, upstream: FloatTensor<Self>) -> FloatTensor<Self>;
    fn border(tensor: FloatTensor<Self>, call: BorderCall) -> FloatTensor<Self>;
}

/// Without autodiff: nothing to record.
macro_rules! without_graph {
    ($backend:ty) => {
        impl GraphOps for $backend {
            fn seed_backward(
                output: FloatTensor<Self>,
                _upstream: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                one_number::<Self>(&output)
            }

            fn border(tensor: FloatTensor<Self>, _call: BorderCall) -> FloatTensor<Self> {
                tensor
            }
        }
    };
}

#[cfg(feature = "flex")]
without_graph!(Flex);
#[cfg(feature = "cubecl")]
without_graph!(Cube);

impl<I, C> GraphOps for Autodiff<I, C>
where
    I: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<I>,
{
    fn seed_backward(output: FloatTensor<Self>, upstream: FloatTensor<Self>) -> FloatTensor<Self> {
        let (_, node) = output.into_parts();
        let upstream = upstream.into_primitive();
        let scalar = one_number::<I>(&upstream);
        match SeedBackward
            .prepare::<NoCheckpointing>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(upstream, scalar),
            OpsKind::UnTracked(prep) => prep.finish(scalar),
        }
    }

    fn border(tensor: FloatTensor<Self>, call: BorderCall) -> FloatTensor<Self> {
        let (value, node) = tensor.into_parts();
        match Border
            .prepare::<NoCheckpointing>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(call, value),
            OpsKind::UnTracked(prep) => prep.finish(value),
        }
    }
}

fn one_number<I: Backend>(like: &FloatTensor<I>) -> FloatTensor<I> {
    I::float_zeros(Shape::new([1]), &like.device(), like.dtype().into())
}

/// Gives its parent the gradient stored at creation, and ignores the incoming one.
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

/// Passes the gradient on unchanged and runs the call.
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
