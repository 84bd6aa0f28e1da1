//! Initial values of weights and biases.
//!
//! A stack without normalisation trains only if values and gradients keep their size through it. So the initialisation
//! of a weight depends on the layers around it.
//!
//! **Linear layers** before ReLU or GELU start as [mirrored pairs](super::mirror), with which a stack of any depth
//! starts as an orthogonal map. This requires an even number of features; an odd number is treated as below.
//!
//! **Others.** With weights of variance `w / fan_in` and biases of variance `b`, a layer turns preactivations of
//! variance `v` into (in the limit of wide layers; Poole et al. 2016, arXiv 1606.05340)
//!
//! ```text
//! v' = w E[f(sqrt(v) z)^2] + b,   and scales gradients' squares by   w E[f'(sqrt(v) z)^2],   z normal
//! ```
//!
//! where `f` is the activation that follows:
//!
//! - ReLU: `E[f^2] = v / 2`, so `w = 2`, `b = 0` keeps both exactly (He et al. 2015, arXiv 1502.01852).
//! - GELU: `E[f^2]` falls short of `v / 2` by 0.05 to 0.08 for every `v` from 0.5 to 10, and below that goes to
//!   `v / 4`: with `w = 2` alone the signal vanishes (`v` = 3e-11 after 40 layers). `b = 0.25` compensates for this:
//!   over 64 layers `v` rises from 1 to 8 and gradients keep their size (a factor of 1.03). Without a bias,
//!   `w = 1 / E[f(z)^2] = 2.352` keeps `v = 1`, but this fixed point is unstable.
//! - tanh, or another matrix: `w = 1`, `b = 0`.
//! - anything else (the model's last layer, the end of a residual, ...): burn's and PyTorch's default, uniform in
//!   `+-1 / sqrt(fan_in)`, which makes small outputs.
//!
//! Layers that do not change the scale (flatten, pooling, dropout) are skipped when finding the next activation.
//!
//! A convolution's windows extend into the zero padding around the image, where they sum fewer values. On small images
//! this is a large share (3x3 over 4x4: 31 %), and over many layers the signal vanishes. So `fan_in` is the average
//! number of values that a window covers.

use burn::module::Initializer;

use super::{spec::LayerSpec, window::mean_on_input};

const RELU_GAIN: f64 = 2.0;
const GELU_BIAS_VARIANCE: f64 = 0.25;
/// `1 / E[gelu(z)^2]` for a normal `z`.
const GELU_GAIN_WITHOUT_BIAS: f64 = 2.352;

/// Whether the linear layer `list[index]` starts as [mirrored pairs](super::mirror); if so, whether its inputs are pairs, too.
pub(super) fn mirrored(list: &[LayerSpec], index: usize) -> Option<bool> {
    if !is_mirrored(list, index) {
        return None;
    }
    let before = list[..index]
        .iter()
        .rposition(|layer| matches!(layer, LayerSpec::Linear { .. }));
    Some(before.is_some_and(|before| {
        let between = &list[before + 1..index];
        is_mirrored(list, before) && between.iter().filter(|layer| !is_dropout(layer)).count() == 1
    }))
}

/// Whether `list[index]` is a linear layer of pairs, with ReLU or GELU after it.
fn is_mirrored(list: &[LayerSpec], index: usize) -> bool {
    let next = list[index + 1..].iter().find(|layer| !is_dropout(layer));
    matches!(list[index], LayerSpec::Linear { out, .. } if out % 2 == 0)
        && matches!(next, Some(LayerSpec::Relu | LayerSpec::Gelu))
}

fn is_dropout(layer: &LayerSpec) -> bool {
    matches!(layer, LayerSpec::Dropout { .. })
}

/// Initial values of a weight and a bias that are drawn independently, depending on the layers that `follow` in the
/// same list.
///
/// `fan_in`: number of values that an output sums, on average.
pub(super) fn independent_values(
    follow: &[LayerSpec],
    fan_in: f64,
    has_bias: bool,
) -> (Initializer, Initializer) {
    let of_variance = |variance: f64| Initializer::Normal {
        mean: 0.0,
        std: variance.sqrt(),
    };
    let without_bias = |gain: f64| (of_variance(gain / fan_in), Initializer::Zeros);
    match follow.iter().find(|layer| !leaves_scale(layer)) {
        Some(LayerSpec::Relu) => without_bias(RELU_GAIN),
        Some(LayerSpec::Gelu) if has_bias => (
            of_variance(RELU_GAIN / fan_in),
            of_variance(GELU_BIAS_VARIANCE),
        ),
        Some(LayerSpec::Gelu) => without_bias(GELU_GAIN_WITHOUT_BIAS),
        Some(LayerSpec::Tanh | LayerSpec::Linear { .. } | LayerSpec::Conv2d { .. }) => {
            without_bias(1.0)
        }
        _ => {
            let bound = 1.0 / fan_in.sqrt();
            let uniform = Initializer::Uniform {
                min: -bound,
                max: bound,
            };
            (uniform.clone(), uniform)
        }
    }
}

/// Values that one output of a convolution over `[channels, height, width]` sums, averaged over its positions.
pub(super) fn conv_fan_in(
    [channels, size @ ..]: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> f64 {
    let along = |axis: usize| mean_on_input(size[axis], kernel[axis], stride[axis], padding[axis]);
    // With large strides and padding, windows may cover no value at all.
    (channels as f64 * along(0) * along(1)).max(1.0)
}

/// Vectors of length 1 on average: their products with normalised ones, of length `sqrt(dim)`, are near 1, as logits
/// should be at the start.
pub(super) fn unit_rows(dim: usize) -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: (dim as f64).sqrt().recip(),
    }
}

fn leaves_scale(layer: &LayerSpec) -> bool {
    matches!(
        layer,
        LayerSpec::Flatten
            | LayerSpec::MaxPool2d(_)
            | LayerSpec::AvgPool2d(_)
            | LayerSpec::Dropout { .. }
    )
}
