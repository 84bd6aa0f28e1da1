//! A parameter's update in `f32`, whatever its type is.
//!
//! Gradient, clipping, state and the updated value are `f32`; only the value that stays is rounded. The module
//! [`dtype`](crate::dtype) says why. Where parameters are `f32` this is the optimizer inside, bit for bit.
//!
//! Memory: for smaller types, copies of one parameter and of its gradient while it is updated.

use burn::{
    grad_clipping::GradientClipping,
    optim::{LearningRate, SimpleOptimizer},
    tensor::{Device, Tensor, backend::Backend},
};

use crate::dtype::Dtype;

/// Runs an optimizer in `f32`.
#[derive(Clone)]
pub(super) struct F32Update<O> {
    pub(super) optimizer: O,
    pub(super) clip: Option<GradientClipping>,
}

impl<B: Backend, O: SimpleOptimizer<B>> SimpleOptimizer<B> for F32Update<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        parameter: Tensor<B, D>,
        gradient: Tensor<B, D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<B, D>, Option<O::State<D>>) {
        let dtype = parameter.dtype();
        let mut gradient = gradient.cast(Dtype::F32.float());
        if let Some(clip) = &self.clip {
            gradient = clip.clip_gradient(gradient);
        }
        let parameter = parameter.cast(Dtype::F32.float());
        let (updated, state) = self.optimizer.step(rate, parameter, gradient, state);
        (updated.cast(dtype), state)
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device<B>) -> O::State<D> {
        O::to_device(state, device)
    }
}
