//! A scalar whose gradient is computed together with it: a custom operation in burn's autodiff graph, for real devices
//! and for the recording device.
//!
//! [`with_gradient`] is the identity on the scalar. Its backward pass multiplies the given gradient by the incoming one
//! for the input, and passes the incoming one on to the scalar. So `f(x, y)` with known `df/dx` and `df/dy` is
//! `with_gradient(with_gradient(f, x, df_dx), y, df_dy)`. The gradients are kept until the backward pass.

#[cfg(feature = "cubecl")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::{
    backend::{
        Autodiff, Backend, Capture, Dispatch, TensorMetadata, backend_extension,
        tensor::FloatTensor,
    },
    tensor::{Shape, Tensor},
};
use burn_autodiff::{
    checkpoint::{
        base::Checkpointer,
        strategy::{CheckpointStrategy, NoCheckpointing},
    },
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

/// `scalar`, with `gradient` as its derivative with respect to `input`; `gradient` has `input`'s shape and type, and no
/// graph.
pub(crate) fn with_gradient<const D: usize>(
    scalar: Tensor<1>,
    input: Tensor<D>,
    gradient: Tensor<D>,
) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as KnownGradient>::with_gradient(
        scalar.into_dispatch(),
        input.into_dispatch(),
        gradient.into_dispatch(),
    ))
}

/// The operation for each backend. Without autodiff there is no graph to add it to, and nothing to record.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cubecl"), Capture, Autodiff)]
pub(crate) trait KnownGradient: Backend {
    fn with_gradient(
        scalar: FloatTensor<Self>,
        _input: FloatTensor<Self>,
        _gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        scalar
    }
}

#[cfg(feature = "flex")]
impl KnownGradient for Flex {}
#[cfg(feature = "cubecl")]
impl KnownGradient for Cube {}
impl KnownGradient for Capture {}

impl<I, C> KnownGradient for Autodiff<I, C>
where
    I: Backend,
    C: CheckpointStrategy,
{
    fn with_gradient(
        scalar: FloatTensor<Self>,
        input: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (value, scalar) = scalar.into_parts();
        let (_, input) = input.into_parts();
        match Scaled
            .prepare::<NoCheckpointing>([scalar, input])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(gradient.into_primitive(), value),
            OpsKind::UnTracked(prep) => prep.finish(value),
        }
    }
}

/// Passes the gradient on to the scalar, and gives the input the known gradient times the incoming one.
#[derive(Debug)]
struct Scaled;

impl<I: Backend> Backward<I, 2> for Scaled {
    type State = FloatTensor<I>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let arriving = grads.consume::<I>(&ops.node);
        let known = ops.state;
        let [scalar, input] = ops.parents;
        if let Some(input) = input {
            let mut scale = arriving.clone();
            if scale.dtype() != known.dtype() {
                scale = I::float_cast(scale, known.dtype().into());
            }
            let scale = I::float_reshape(scale, Shape::from(vec![1; known.rank()]));
            grads.register::<I>(input.id, I::float_mul(known, scale));
        }
        if let Some(scalar) = scalar {
            grads.register::<I>(scalar.id, arriving);
        }
    }
}
