//! What a model is made of, as plain values: no backend, no tensors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One layer of a sequential model, before its input's shape is known.
///
/// Sizes that follow from the input (channels in, features in) are not here: shape inference finds them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum LayerSpec {
    /// `y = x W + b` on the last dimension.
    Linear {
        /// Features out.
        out: usize,
        /// Whether a bias is added.
        bias: bool,
    },
    /// 2-D convolution over `[channels, height, width]`.
    Conv2d {
        /// Channels out.
        out: usize,
        /// Kernel height and width.
        kernel: [usize; 2],
        /// Step in height and width.
        stride: [usize; 2],
        /// Zeros around the input.
        padding: Padding,
        /// Whether a bias is added.
        bias: bool,
    },
    /// Maximum over windows of `[channels, height, width]`.
    MaxPool2d(PoolSpec),
    /// Mean over windows of `[channels, height, width]`, padding not counted.
    AvgPool2d(PoolSpec),
    /// All dimensions of a sample into one.
    Flatten,
    /// The same values in another shape (without the batch dimension).
    Reshape {
        /// The new shape of one sample.
        shape: Vec<usize>,
    },
    /// `max(x, 0)`.
    Relu,
    /// Gaussian error linear unit.
    Gelu,
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
    /// Softmax over the last dimension.
    Softmax,
    /// Zeroes values at random while training and scales the rest by `1 / (1 - p)`.
    Dropout {
        /// Chance that a value is zeroed, in `[0, 1)`.
        p: f64,
    },
    /// Batch normalisation over the first dimension of a sample (channels or features).
    BatchNorm {
        /// Added to the variance.
        epsilon: f64,
        /// Share of the new batch in the running statistics.
        momentum: f64,
    },
    /// Layer normalisation over the last dimension.
    LayerNorm {
        /// Added to the variance.
        epsilon: f64,
    },
    /// A learned vector for each token id.
    Embedding {
        /// Number of different ids.
        vocab: usize,
        /// Length of each vector.
        dim: usize,
    },
    /// Zeros around `[channels, height, width]`.
    ZeroPad {
        /// Rows above and below, columns left and right: `[top, bottom, left, right]`.
        padding: [usize; 4],
    },
    /// `x + f(x)`, where `f` is a list of layers that keeps the shape.
    Residual {
        /// The layers of `f`.
        layers: Vec<LayerSpec>,
    },
}

impl LayerSpec {
    /// The layer's name in a config, such as `conv2d`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Conv2d { .. } => "conv2d",
            Self::MaxPool2d(_) => "max_pool2d",
            Self::AvgPool2d(_) => "avg_pool2d",
            Self::Flatten => "flatten",
            Self::Reshape { .. } => "reshape",
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
            Self::Dropout { .. } => "dropout",
            Self::BatchNorm { .. } => "batch_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Embedding { .. } => "embedding",
            Self::ZeroPad { .. } => "zero_pad",
            Self::Residual { .. } => "residual",
        }
    }
}

/// Window of a pooling layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// Window height and width.
    pub kernel: [usize; 2],
    /// Step in height and width.
    pub stride: [usize; 2],
    /// Rows and columns added on each side.
    pub padding: [usize; 2],
}

/// Zeros around a convolution's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// As many as keep `ceil(size / stride)`; needs an odd kernel.
    Same,
    /// None.
    Valid,
    /// Rows and columns on each side.
    Explicit([usize; 2]),
}

/// A whole model: what it takes and its layers in order, groups already repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Shape of one sample, and whether it holds numbers or token ids.
    pub input: SampleShape,
    /// The layers.
    pub layers: Vec<LayerSpec>,
}

/// Shape of one sample, without the batch dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleShape {
    /// Whether the values are numbers or token ids.
    pub kind: ElementKind,
    /// Sizes of the dimensions.
    pub dims: Vec<usize>,
}

impl SampleShape {
    /// A shape of numbers.
    #[must_use]
    pub fn float(dims: impl Into<Vec<usize>>) -> Self {
        Self {
            kind: ElementKind::Float,
            dims: dims.into(),
        }
    }

    /// A shape of token ids.
    #[must_use]
    pub fn tokens(dims: impl Into<Vec<usize>>) -> Self {
        Self {
            kind: ElementKind::Token,
            dims: dims.into(),
        }
    }

    /// Number of values in one sample; `u64::MAX` where that does not fit.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims
            .iter()
            .fold(1, |product: u64, &dim| product.saturating_mul(dim as u64))
    }
}

/// `[1, 28, 28]`, or `tokens [128]`.
impl fmt::Display for SampleShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ElementKind::Float => write!(f, "{:?}", self.dims),
            ElementKind::Token => write!(f, "tokens {:?}", self.dims),
        }
    }
}

/// What the values of an activation are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementKind {
    /// Floating-point numbers; gradients flow.
    Float,
    /// Token ids; no gradient.
    Token,
}
