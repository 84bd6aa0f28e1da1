//! Custom operations in burn's autodiff graph, for modules that run unrecorded. Only this file and `known_gradient.rs`
//! use burn-autodiff's extension interface.
//!
//! | operation | forward | backward |
//! |---|---|---|
//! | [`seed_backward`] | an unused scalar | gives its input a gradient that was computed before |
//! | [`border`] | the input | passes the gradient on and calls a function |
//! | [`link`] | one unused number | gives its input the gradient in a [`Cell`] |
//! | [`gate`] | a value computed outside the graph | stores its gradient in a [`Cell`] |
//!
//! A segment's backward pass must start from the gradient of the segment's output, which the later segments have
//! already produced. burn starts every backward pass from a scalar with gradient one; [`seed_backward`] bridges the
//! two. [`link`] and [`gate`] are the two ends of a part of the model that is left out of the graph (see
//! [`tape`](crate::tape)). None of them adds arithmetic, so gradients equal the plain run's bit for bit.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

#[cfg(feature = "cubecl")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::{
    backend::{
        Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor,
        DispatchTensorKind, TensorMetadata, backend_extension, tensor::FloatTensor,
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

use crate::tape::dead_ends::DeadEnds;

/// A scalar whose backward pass gives `output` the gradient `upstream`, which has `output`'s shape and no graph.
pub(crate) fn seed_backward(output: DispatchTensor, upstream: DispatchTensor) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as GraphOps>::seed_backward(output, upstream))
}

/// The same tensor with a border in its graph: a backward pass through the border runs the call.
pub(crate) fn border<const D: usize>(tensor: Tensor<D>, call: BorderCall) -> Tensor<D> {
    let tensor = tensor.into_dispatch();
    Tensor::from_dispatch(<Dispatch as GraphOps>::border(tensor, call))
}

/// One number with the parents `previous` and `input`: a backward pass through it gives `input` the gradient in `cell`.
/// If the cell is empty, `input` gets zeros, because burn requires a gradient there, and `dead_ends` records it.
pub(crate) fn link<const D: usize>(
    previous: Tensor<1>,
    input: Tensor<D>,
    cell: Cell,
    dead_ends: DeadEnds,
) -> Tensor<1> {
    let (previous, input) = (previous.into_dispatch(), input.into_dispatch());
    Tensor::from_dispatch(<Dispatch as GraphOps>::link(
        previous, input, cell, dead_ends,
    ))
}

/// `value`, which has no graph, with `anchor` as its parent: a backward pass stores the gradient in `cell` and
/// continues to `anchor`, a tracked tensor of one number.
///
/// A gradient that arrives through `dead_ends` alone counts as no gradient.
pub(crate) fn gate<const D: usize>(
    anchor: Tensor<1>,
    value: Tensor<D>,
    cell: Cell,
    dead_ends: DeadEnds,
) -> Tensor<D> {
    let (anchor, value) = (anchor.into_dispatch(), value.inner().into_dispatch());
    Tensor::from_dispatch(<Dispatch as GraphOps>::gate(anchor, value, cell, dead_ends))
}

/// The id of the tensor's node in burn's graph, if it can have one.
pub(crate) fn node_number<const D: usize>(tensor: &Tensor<D>) -> Option<u64> {
    let DispatchTensorKind::Autodiff(tensor) = tensor.clone().into_dispatch().kind else {
        return None;
    };
    match *tensor {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => Some(tensor.id().value),
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(BackendTensor::Autodiff(tensor)) => Some(tensor.id().value),
        _ => None,
    }
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

/// Storage for one gradient, without a graph. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell(Arc<Mutex<Option<DispatchTensor>>>);

impl Cell {
    pub(crate) fn put(&self, gradient: Option<DispatchTensor>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gradient;
    }

    pub(crate) fn take(&self) -> Option<DispatchTensor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The operations of this file for each backend. Without autodiff there is no graph to add them to.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cubecl"), Autodiff)]
pub(crate) trait GraphOps: Backend {
    fn seed_backward(output: FloatTensor<Self>, upstream: FloatTensor<Self>) -> FloatTensor<Self>;
    fn border(tensor: FloatTensor<Self>, call: BorderCall) -> FloatTensor<Self>;
    fn link(
        previous: FloatTensor<Self>,
        input: FloatTensor<Self>,
        cell: Cell,
        dead_ends: DeadEnds,
    ) -> FloatTensor<Self>;
    fn gate(
        anchor: FloatTensor<Self>,
        value: FloatTensor<Self>,
        cell: Cell,
        dead_ends: DeadEnds,
    ) -> FloatTensor<Self>;
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

            fn link(
                previous: FloatTensor<Self>,
                _input: FloatTensor<Self>,
                _cell: Cell,
                _dead_ends: DeadEnds,
            ) -> FloatTensor<Self> {
                previous
            }

            fn gate(
                _anchor: FloatTensor<Self>,
                value: FloatTensor<Self>,
                _cell: Cell,
                _dead_ends: DeadEnds,
            ) -> FloatTensor<Self> {
                value
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

    fn link(
        previous: FloatTensor<Self>,
        input: FloatTensor<Self>,
        cell: Cell,
        dead_ends: DeadEnds,
    ) -> FloatTensor<Self> {
        let (number, previous) = previous.into_parts();
        let (input, node) = input.into_parts();
        let state = LinkState {
            cell,
            dead_ends,
            shape: input.shape(),
            dtype: input.dtype().into(),
        };
        match Link
            .prepare::<NoCheckpointing>([previous, node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(state, number),
            OpsKind::UnTracked(prep) => prep.finish(number),
        }
    }

    fn gate(
        anchor: FloatTensor<Self>,
        value: FloatTensor<Self>,
        cell: Cell,
        dead_ends: DeadEnds,
    ) -> FloatTensor<Self> {
        let (_, node) = anchor.into_parts();
        let value = value.into_primitive();
        match Gate
            .prepare::<NoCheckpointing>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish((cell, dead_ends), value),
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

#[derive(Clone, Debug)]
struct LinkState {
    cell: Cell,
    dead_ends: DeadEnds,
    shape: Shape,
    dtype: burn::tensor::FloatDType,
}

/// Passes the gradient on to the previous link, and gives its input the one in the cell.
#[derive(Debug)]
struct Link;

impl<I: Backend> Backward<I, 2> for Link
where
    DispatchTensor: DispatchKindConversion<I>,
{
    type State = LinkState;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<I>(&ops.node);
        let [previous, input] = ops.parents;
        if let Some(input) = input {
            let state = ops.state;
            let own = state.cell.take().map(|own| {
                <DispatchTensor as DispatchKindConversion<I>>::try_into_backend(own)
                    .map(BackendTensor::float)
            });
            let own = match own {
                Some(Ok(own)) => own,
                Some(Err(other)) => unreachable!("a gradient is on its tensor's device: {other}"),
                None => {
                    let (link, input) = (ops.node.id.value, input.id.value);
                    state.dead_ends.note(link, input, checkpointer);
                    I::float_zeros(state.shape, &gradient.device(), state.dtype)
                }
            };
            grads.register::<I>(input.id, own);
        }
        if let Some(previous) = previous {
            grads.register::<I>(previous.id, gradient);
        }
    }
}

/// Stores the gradient in its cell, and gives the anchor an arbitrary gradient.
#[derive(Debug)]
struct Gate;

impl<I: Backend> Backward<I, 1> for Gate
where
    DispatchTensor: DispatchKindConversion<I>,
{
    type State = (Cell, DeadEnds);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<I>(&ops.node);
        let [anchor] = ops.parents;
        if let Some(anchor) = anchor {
            grads.register::<I>(anchor.id, one_number::<I>(&gradient));
        }
        let (cell, dead_ends) = ops.state;
        if dead_ends.is_live(ops.node.id.value) {
            let gradient = BackendTensor::Float(gradient);
            let gradient = <DispatchTensor as DispatchKindConversion<I>>::from_backend(gradient);
            cell.put(Some(gradient));
        }
    }
}
