//! What a model is made of, as plain values: no backend, no tensors.
//!
//! A description writes a list of layers in a short form: groups repeat, and a layer that needs no other key is its name alone.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::short_form::{self, Pair};

/// One layer of a sequential model, before its input's shape is known.
///
/// Sizes that follow from the input (channels in, features in) are not here: shape inference finds them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(transform = short_form::with_following_defaults)]
pub enum LayerSpec {
    /// `y = x W + b` on the last dimension.
    Linear {
        /// Features out.
        #[schemars(range(min = 1))]
        out: usize,
        /// Whether a bias is added.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// 2-D convolution over `[channels, height, width]`.
    Conv2d {
        /// Channels out.
        #[schemars(range(min = 1))]
        out: usize,
        /// Kernel height and width.
        #[serde(deserialize_with = "short_form::pair")]
        #[schemars(schema_with = "short_form::pair_of_sizes")]
        kernel: [usize; 2],
        /// Step in height and width.
        #[serde(default = "one_step", deserialize_with = "short_form::pair")]
        #[schemars(schema_with = "short_form::pair_of_sizes")]
        stride: [usize; 2],
        /// Zeros around the input: `same` keeps `ceil(size / stride)` and needs an odd kernel, `valid` adds none; or rows
        /// and columns on each side.
        #[serde(default, deserialize_with = "padding")]
        #[schemars(schema_with = "padding_schema")]
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
    /// The same values in another shape (without the batch dimension).
    Reshape {
        /// The new shape of one sample.
        #[schemars(inner(range(min = 1)))]
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
        #[serde(default = "half")]
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        p: f64,
    },
    /// Batch normalisation over the first dimension of a sample (channels or features).
    BatchNorm {
        /// Added to the variance.
        #[serde(default = "normalisation_epsilon")]
        #[schemars(extend("exclusiveMinimum" = 0))]
        epsilon: f64,
        /// Share of the new batch in the running statistics.
        #[serde(default = "statistics_momentum")]
        #[schemars(range(min = 0, max = 1))]
        momentum: f64,
    },
    /// Layer normalisation over the last dimension.
    LayerNorm {
        /// Added to the variance.
        #[serde(default = "normalisation_epsilon")]
        #[schemars(extend("exclusiveMinimum" = 0))]
        epsilon: f64,
    },
    /// A learned vector for each token id.
    Embedding {
        /// Number of different ids.
        #[schemars(range(min = 1), extend("x-default" = "number of token ids in the data"))]
        vocab: usize,
        /// Length of each vector.
        #[schemars(range(min = 1))]
        dim: usize,
    },
    /// Logits by the embedding's own weight, transposed: `y = x E^T`. The model has one embedding, of `vocab` token ids.
    Unembedding {
        /// Number of different ids.
        #[schemars(range(min = 1), extend("x-default" = "number of token ids in the data"))]
        vocab: usize,
    },
    /// A learned vector for each place, added: on `[length, dim]`, for attention, which knows no order.
    Positions,
    /// Multi-head self-attention over `[length, dim]`, with its four linear maps (Vaswani et al. 2017).
    Attention {
        /// Number of heads; it divides `dim`.
        #[schemars(range(min = 1))]
        heads: usize,
        /// Whether a place sees only itself and those before it.
        #[serde(default = "yes")]
        causal: bool,
    },
    /// Zeros around `[channels, height, width]`.
    ZeroPad {
        /// Rows above and below, columns left and right: one number for all sides, `[rows, columns]`, or
        /// `[top, bottom, left, right]`.
        #[serde(deserialize_with = "short_form::sides")]
        #[schemars(schema_with = "short_form::sides_schema")]
        padding: [usize; 4],
    },
    /// `x + f(x)`, where `f` is a list of layers that keeps the shape.
    Residual {
        /// The layers of `f`.
        #[serde(deserialize_with = "unfolded_layers")]
        #[schemars(schema_with = "layers_schema", length(min = 1))]
        layers: Vec<LayerSpec>,
    },
}

fn yes() -> bool {
    true
}

fn one_step() -> [usize; 2] {
    [1, 1]
}

fn half() -> f64 {
    0.5
}

fn normalisation_epsilon() -> f64 {
    1e-5
}

fn statistics_momentum() -> f64 {
    0.1
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
            Self::Unembedding { .. } => "unembedding",
            Self::Positions => "positions",
            Self::Attention { .. } => "attention",
            Self::ZeroPad { .. } => "zero_pad",
            Self::Residual { .. } => "residual",
        }
    }
}

/// Layers that a list may unfold to, those inside residuals counted: as many as planners take stages.
pub const MAX_LAYERS: usize = 20_000;

/// A layer: a table, its name alone, or a group of layers. A table and a group may repeat.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LayerItem {
    /// A layer.
    Layer(RepeatedLayer),
    /// A group.
    Group(LayerGroup),
    /// A layer that needs no other key.
    Name(
        #[serde(deserialize_with = "short_form::named")]
        #[schemars(schema_with = "short_form::bare_names::<LayerSpec>")]
        LayerSpec,
    ),
}

/// A layer, as often as it repeats.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = short_form::spread_properties)]
pub struct RepeatedLayer {
    /// How often it stands there, one after the other.
    #[serde(default = "once")]
    #[schemars(range(min = 1))]
    repeat: usize,
    #[serde(flatten)]
    layer: LayerSpec,
}

/// A group: its layers repeat together.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerGroup {
    /// How often it stands there, one after the other.
    #[serde(default = "once")]
    #[schemars(range(min = 1))]
    repeat: usize,
    /// Its layers.
    #[schemars(length(min = 1))]
    layers: Vec<LayerItem>,
}

fn once() -> usize {
    1
}

/// The schema of a list: groups are read, and written unfolded.
pub fn layers_schema(generator: &mut SchemaGenerator) -> Schema {
    match generator.contract().is_serialize() {
        true => generator.subschema_for::<Vec<LayerSpec>>(),
        false => generator.subschema_for::<Vec<LayerItem>>(),
    }
}

/// Reads a list and unfolds its groups.
///
/// # Errors
///
/// For what is no list of layers, and for one of more than [`MAX_LAYERS`].
pub fn unfolded_layers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<LayerSpec>, D::Error> {
    let items = Vec::<LayerItem>::deserialize(deserializer)?;
    let mut layers = Vec::new();
    unfold(items, &mut layers).map_err(D::Error::custom)?;
    Ok(layers)
}

fn unfold(items: Vec<LayerItem>, layers: &mut Vec<LayerSpec>) -> Result<(), String> {
    let mut all = count_layers(layers);
    for item in items {
        let (repeat, turn) = match item {
            LayerItem::Name(layer) => (1, vec![layer]),
            LayerItem::Layer(RepeatedLayer { repeat, layer }) => (repeat, vec![layer]),
            LayerItem::Group(LayerGroup { repeat, layers }) => {
                let mut turn = Vec::new();
                unfold(layers, &mut turn)?;
                (repeat, turn)
            }
        };
        all = all.saturating_add(count_layers(&turn).saturating_mul(repeat));
        if all > MAX_LAYERS {
            return Err(format!("a model has at most {MAX_LAYERS} layers here"));
        }
        for _ in 0..repeat {
            layers.extend_from_slice(&turn);
        }
    }
    Ok(())
}

/// All layers, those inside residuals counted.
fn count_layers(layers: &[LayerSpec]) -> usize {
    let inside = |layer: &LayerSpec| match layer {
        LayerSpec::Residual { layers } => 1 + count_layers(layers),
        _ => 1,
    };
    layers.iter().map(inside).sum()
}

/// Window of a pooling layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = short_form::with_following_defaults)]
pub struct PoolSpec {
    /// Window height and width.
    #[serde(deserialize_with = "short_form::pair")]
    #[schemars(schema_with = "short_form::pair_of_sizes")]
    pub kernel: [usize; 2],
    /// Step in height and width.
    #[serde(deserialize_with = "short_form::pair")]
    #[schemars(schema_with = "short_form::pair_of_sizes", extend("x-default" = "`kernel`"))]
    pub stride: [usize; 2],
    /// Rows and columns added on each side; `valid` adds none.
    #[serde(default, deserialize_with = "pool_padding")]
    #[schemars(schema_with = "pool_padding_schema")]
    pub padding: [usize; 2],
}

fn pool_padding<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[usize; 2], D::Error> {
    match padding(deserializer)? {
        Padding::Explicit(sides) => Ok(sides),
        Padding::Valid => Ok([0, 0]),
        Padding::Same => Err(D::Error::custom("a pool has no padding \"same\"")),
    }
}

fn pool_padding_schema(_: &mut SchemaGenerator) -> Schema {
    short_form::pair_or_word(&["valid"])
}

/// Zeros around a convolution's input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// As many as keep `ceil(size / stride)`; needs an odd kernel.
    Same,
    /// None.
    #[default]
    Valid,
    /// Rows and columns on each side.
    Explicit([usize; 2]),
}

/// Reads a padding, or a pair alone for [`Padding::Explicit`].
fn padding<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Padding, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Pair(Pair),
        Padding(Padding),
    }
    Form::deserialize(deserializer).map(|form| match form {
        Form::Pair(pair) => Padding::Explicit(pair.into()),
        Form::Padding(padding) => padding,
    })
}

fn padding_schema(_: &mut SchemaGenerator) -> Schema {
    short_form::pair_or_word(&["same", "valid"])
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
