//! Batch normalisation by the statistics of the whole batch, where [ranks](crate::reduce) share it.
//!
//! For ranks r with the share w_r of the samples and values x over samples and positions,
//!
//! ```text
//! m = sum_r w_r mean_r(x)      v = sum_r w_r mean_r((x - m)^2)      y = gamma (x - m) / sqrt(v + epsilon) + beta
//! ```
//!
//! Each sum is one operation of a recorded step, the *mean over ranks* A(z) = sum_r w_r z_r. A rank's backward pass
//! computes the derivatives of its own loss, which the whole loss weighs by w_r. So if d_r is the derivative with
//! respect to A's result, the derivative with respect to z_r is sum_q w_q d_q, again without the rank's own weight:
//! A(d). Forward and backward pass each need two sums of C values, C being the number of channels.
//!
//! A runs once, in recorded order, in any plan; its result is kept for recomputes. Outside of a recorded step shared by
//! ranks, A is the identity, and the statistics are those of the process.

#[cfg(feature = "cubecl")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::{
    backend::{Autodiff, Backend, Capture, Dispatch, backend_extension, tensor::FloatTensor},
    nn::BatchNorm,
    tensor::Tensor,
};
use burn_autodiff::{
    checkpoint::{
        base::Checkpointer,
        strategy::{CheckpointStrategy, NoCheckpointing},
    },
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_backend::{Scalar, ops::FloatTensorOps};
use burn_ir::{NumericOperationIr, OperationIr, ScalarIr};

/// Like [`BatchNorm::forward`], but in a recorded step shared by several ranks it uses mean and variance over the
/// samples of all ranks, also for its running statistics. Forward and gradients are those of one device with the whole
/// batch.
///
/// Input and output have the shape `[samples, channels, ..]`. If the ranks' shares are not equal, set them with
/// [`Step::set_share`](crate::record::Step::set_share). It consists of more operations than burn's, so it holds more
/// memory. Forward and backward pass each wait twice for all ranks, for a sum of one value per channel; gradients are
/// summed after the last of these sums.
///
/// # Panics
///
/// Panics like [`BatchNorm::forward`].
pub fn synchronised_batch_norm<const D: usize>(norm: &BatchNorm, input: Tensor<D>) -> Tensor<D> {
    let device = input.device();
    if !(device.is_autodiff() && norm.training.is_enabled()) {
        return norm.forward(input);
    }
    let channels = norm.gamma.dims()[0];
    let mut per_channel = [1; D];
    per_channel[1] = channels;
    let mean = |values: Tensor<D>| {
        let by_channel = values.swap_dims(0, 1).reshape([channels as i32, -1]);
        mean_over_ranks(by_channel.mean_dim(1).reshape([channels]))
    };
    let batch_mean = mean(input.clone());
    let centred = input - batch_mean.clone().reshape(per_channel);
    let variance = mean(centred.clone().square());
    let deviation = variance.clone().add_scalar(norm.epsilon).sqrt();
    for (running, now) in [
        (&norm.running_mean, batch_mean),
        (&norm.running_var, variance),
    ] {
        let before = running.value_sync().to_device(&device);
        let before = before.mul_scalar(1.0 - norm.momentum);
        running.update((before + now.detach().mul_scalar(norm.momentum)).detach());
    }
    let normalised = centred / deviation.reshape(per_channel);
    normalised * norm.gamma.val().reshape(per_channel) + norm.beta.val().reshape(per_channel)
}

/// The operation A of the [module documentation](self).
fn mean_over_ranks<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as MeanOverRanks>::mean_over_ranks(
        tensor.into_dispatch(),
    ))
}

/// The bounds of a clamp that stands for a mean over ranks: no number of a type below `f64` is outside of them, and nobody
/// else writes the lower one.
const BOUNDS: [f64; 2] = [f64::MIN.next_up(), f64::INFINITY];

/// Whether a recorded operation is a mean over ranks. burn has no operation for it: it is recorded as a clamp that changes
/// nothing.
pub(crate) fn is_mean_over_ranks(operation: &OperationIr) -> bool {
    matches!(
        operation,
        OperationIr::NumericFloat(_, NumericOperationIr::Clamp(clamp))
            if [&clamp.min, &clamp.max] == BOUNDS.map(ScalarIr::Float).each_ref()
    )
}

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cubecl"), Capture, Autodiff)]
pub(crate) trait MeanOverRanks: Backend {
    /// Without a recording, the rank is alone.
    fn mean_over_ranks(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }
}

#[cfg(feature = "flex")]
impl MeanOverRanks for Flex {}
#[cfg(feature = "cubecl")]
impl MeanOverRanks for Cube {}

impl MeanOverRanks for Capture {
    fn mean_over_ranks(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let [min, max] = BOUNDS.map(Scalar::Float);
        Self::float_clamp(tensor, min, max)
    }
}

impl<I, C> MeanOverRanks for Autodiff<I, C>
where
    I: Backend + MeanOverRanks,
    C: CheckpointStrategy,
{
    fn mean_over_ranks(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let (value, node) = tensor.into_parts();
        let mean = I::mean_over_ranks(value);
        match Mean
            .prepare::<NoCheckpointing>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish((), mean),
            OpsKind::UnTracked(prep) => prep.finish(mean),
        }
    }
}

/// The mean over ranks of the gradient.
#[derive(Debug)]
struct Mean;

impl<I: Backend + MeanOverRanks> Backward<I, 1> for Mean {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let arriving = grads.consume::<I>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<I>(parent.id, I::mean_over_ranks(arriving));
        }
    }
}
