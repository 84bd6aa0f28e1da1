//! What a model is made of, as plain values: no backend, no tensors. It is `[model]` in a config.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::invalid::AT_LEAST_1;

/// One layer of a sequential model, before its input's shape is known.
///
/// Sizes that follow from the input (channels in, features in) are not here: shape inference finds them. A layer without
/// keys is its kind; one with keys is a table of one key, its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    expecting = "a table of the layer's keys",
    rename_all = "snake_case",
    deny_unknown_fields
)]
pub enum LayerSpec {
    /// `y = x W + b` on the last dimension.
    Linear {
        /// Features out.
        out: usize,
        /// Whether a bias is added.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// 2-D convolution over `[channels, height, width]`.
    Conv2d {
        /// Channels out.
        out: usize,
        /// Kernel height and width.
        #[serde(deserialize_with = "pair")]
        #[schemars(with = "Pair")]
        kernel: [usize; 2],
        /// Step in height and width.
        #[serde(default = "one_step", deserialize_with = "pair")]
        #[schemars(with = "Pair")]
        stride: [usize; 2],
        /// Zeros around the input.
        #[serde(default = "no_zeros")]
        padding: Padding,
        /// Whether a bias is added.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// Maximum over windows of `[channels, height, width]`.
    MaxPool2d(PoolSpec),
    /// Mean over windows of `[channels, height, width]`, padding not counted.
    AvgPool2d(PoolSpec),
    /// All dimensions of a sample into one.
    Flatten,
    /// `max(x, 0)`.
    Relu,
    /// Gaussian error linear unit.
    Gelu,
    /// Hyperbolic tangent.
    Tanh,
    /// Zeroes values at random while training and scales the rest by `1 / (1 - p)`.
    Dropout {
        /// Chance that a value is zeroed, in `[0, 1)`.
        p: f64,
    },
    /// Batch normalisation over the first dimension of a sample (channels or features).
    BatchNorm,
    /// Layer normalisation over the last dimension.
    LayerNorm,
    /// A learned vector for each token id.
    Embedding {
        /// Number of different ids. In a config it may be left out: then it is the data's.
        #[serde(default)]
        vocab: usize,
        /// Length of each vector.
        dim: usize,
    },
    /// Logits by the embedding's own weight, transposed: `y = x E^T`.
    Unembedding,
    /// A learned vector for each place, added: on `[length, dim]`, for attention, which knows no order.
    Positions,
    /// Multi-head self-attention over `[length, dim]`, with its four linear maps (Vaswani et al. 2017).
    Attention {
        /// Number of heads; it divides `dim`.
        heads: usize,
        /// Whether a place sees only itself and those before it.
        #[serde(default = "yes")]
        causal: bool,
    },
    /// `x + f(x)`, where `f` is a list of layers that keeps the shape.
    Residual(Vec<LayerSpec>),
    /// A group of layers that stands `times` times, one after the other. Models have its layers in place of it.
    Repeat {
        /// How often.
        times: usize,
        /// Its layers.
        layers: Vec<LayerSpec>,
    },
}

fn yes() -> bool {
    true
}

fn one_step() -> [usize; 2] {
    [1, 1]
}

fn no_zeros() -> Padding {
    Padding::Explicit([0, 0])
}

/// Layers that a list may unfold to, those inside residuals counted: as many as planners take stages.
pub const MAX_LAYERS: usize = 20_000;

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
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Dropout { .. } => "dropout",
            Self::BatchNorm => "batch_norm",
            Self::LayerNorm => "layer_norm",
            Self::Embedding { .. } => "embedding",
            Self::Unembedding => "unembedding",
            Self::Positions => "positions",
            Self::Attention { .. } => "attention",
            Self::Residual(_) => "residual",
            Self::Repeat { .. } => "repeat",
        }
    }

    /// Appends the layer to a list, or all layers of a group; groups inside it are unfolded, too.
    ///
    /// # Errors
    ///
    /// For a group without layers or turns, and where the list has more than [`MAX_LAYERS`] then.
    pub fn unfold(&self, to: &mut Vec<Self>) -> Result<(), String> {
        let unfolded = |layers: &[Self]| -> Result<Vec<Self>, String> {
            let mut list = Vec::new();
            layers
                .iter()
                .try_for_each(|layer| layer.unfold(&mut list))?;
            Ok(list)
        };
        let too_many = || Err(format!("a model has at most {MAX_LAYERS} layers here"));
        match self {
            Self::Repeat { times: 0, .. } => return Err(format!("`times` {AT_LEAST_1}")),
            Self::Repeat { times, layers } => {
                let turn = unfolded(layers)?;
                if turn.is_empty() {
                    return Err("`repeat` has no layers; give it at least one".into());
                }
                let added = count_layers(&turn).saturating_mul(*times);
                if added.saturating_add(count_layers(to)) > MAX_LAYERS {
                    return too_many();
                }
                for _ in 0..*times {
                    to.extend_from_slice(&turn);
                }
            }
            _ if to.len() >= MAX_LAYERS => return too_many(),
            Self::Residual(layers) => to.push(Self::Residual(unfolded(layers)?)),
            layer => to.push(layer.clone()),
        }
        Ok(())
    }
}

/// Whether a list has a batch norm, those inside residuals and groups included.
#[must_use]
pub fn has_batch_norm(layers: &[LayerSpec]) -> bool {
    layers.iter().any(|layer| match layer {
        LayerSpec::Residual(layers) | LayerSpec::Repeat { layers, .. } => has_batch_norm(layers),
        layer => *layer == LayerSpec::BatchNorm,
    })
}

/// All layers of an unfolded list, those inside residuals counted.
#[must_use]
pub fn count_layers(layers: &[LayerSpec]) -> usize {
    let inside = |layer: &LayerSpec| match layer {
        LayerSpec::Residual(layers) => 1 + count_layers(layers),
        _ => 1,
    };
    layers.iter().map(inside).sum()
}

/// One number for both directions, or one for each.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a whole number, or a pair of them")]
enum Pair {
    Both(usize),
    Each([usize; 2]),
}

impl Pair {
    fn each(self) -> [usize; 2] {
        match self {
            Self::Both(size) => [size; 2],
            Self::Each(sizes) => sizes,
        }
    }
}

fn pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[usize; 2], D::Error> {
    Pair::deserialize(deserializer).map(Pair::each)
}

/// Window of a pooling layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields)]
pub struct PoolSpec {
    /// Window height and width.
    #[serde(deserialize_with = "pair")]
    #[schemars(with = "Pair")]
    pub kernel: [usize; 2],
    /// Step in height and width. Not set, it is the kernel's.
    #[serde(default, deserialize_with = "maybe_pair")]
    #[schemars(with = "Option<Pair>")]
    pub stride: Option<[usize; 2]>,
    /// Rows and columns added on each side.
    #[serde(default, deserialize_with = "pair")]
    #[schemars(with = "Pair")]
    pub padding: [usize; 2],
}

fn maybe_pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<[usize; 2]>, D::Error> {
    // A record has `null` where a config has nothing.
    Option::<Pair>::deserialize(deserializer).map(|pair| pair.map(Pair::each))
}

impl PoolSpec {
    /// Step in height and width.
    #[must_use]
    pub fn stride(&self) -> [usize; 2] {
        self.stride.unwrap_or(self.kernel)
    }
}

/// Zeros around a convolution's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "snake_case",
    expecting = "expected \"same\", a whole number, or a pair of them"
)]
pub enum Padding {
    /// As many as keep `ceil(size / stride)`; needs an odd kernel.
    Same,
    /// Rows and columns on each side.
    #[serde(untagged)]
    Explicit(
        #[serde(deserialize_with = "pair")]
        #[schemars(with = "Pair")]
        [usize; 2],
    ),
}

/// A whole model: what it takes and its layers in order, groups already repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Shape of one sample, and whether it holds numbers or token ids.
    pub input: SampleShape,
    /// The layers.
    pub layers: Vec<LayerSpec>,
}

/// Shape of one sample, without the batch dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

    /// Number of values in one sample; `u64::MAX` if that does not fit.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElementKind {
    /// Floating-point numbers; gradients flow.
    Float,
    /// Token ids; no gradient.
    Token,
}

#[cfg(test)]
mod tests;
