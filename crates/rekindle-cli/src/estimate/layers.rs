//! The tree of layers.

use rekindle_plan::Bytes;
use rekindle_train::{
    model::{
        shape::LayerShape,
        spec::{ElementKind, LayerSpec, SampleShape},
    },
    settings::TrainSettings,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::config::Config;

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Layer {
    /// Kind of layer, and its main setting.
    pub name: String,
    /// Shape of one input sample.
    pub input_shape: Vec<usize>,
    /// Shape of one output sample.
    pub output_shape: Vec<usize>,
    /// Parameters that are trained.
    pub param_count: u64,
    /// Numbers that are kept and not trained: running statistics.
    pub frozen_count: u64,
    /// Multiply-adds of the matrix products of one forward.
    pub multiply_adds: u64,
    /// Bytes of the output.
    pub output_bytes: Bytes,
    /// The layers inside a residual; absent elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
}

/// Bytes of samples of a shape that run at once.
pub fn bytes(sample: &SampleShape, settings: &TrainSettings) -> Bytes {
    let width = match sample.kind {
        ElementKind::Float => settings.dtype.bytes(),
        ElementKind::Token => TOKEN_BYTES,
    };
    let numbers = sample
        .elements()
        .saturating_mul(settings.micro_batch() as u64);
    Bytes(numbers.saturating_mul(width))
}

/// Every layer of a config's model.
pub fn layers(config: &Config) -> Vec<Layer> {
    list(&config.model.layers, &config.shape.layers, &config.training)
}

fn list(specs: &[LayerSpec], shapes: &[LayerShape], settings: &TrainSettings) -> Vec<Layer> {
    let layer = |(spec, shape): (&LayerSpec, &LayerShape)| {
        let layers = match spec {
            LayerSpec::Residual(layers) => list(layers, &shape.inner, settings),
            _ => Vec::new(),
        };
        let inside: u64 = layers.iter().map(|one| one.frozen_count).sum();
        let samples = settings.micro_batch() as u64;
        Layer {
            name: describe(spec),
            input_shape: shape.input.dims.clone(),
            output_shape: shape.output.dims.clone(),
            param_count: shape.param_count,
            frozen_count: shape.statistics(spec) + inside,
            multiply_adds: shape.multiply_adds(spec).saturating_mul(samples),
            output_bytes: bytes(&shape.output, settings),
            layers,
        }
    };
    specs.iter().zip(shapes).map(layer).collect()
}

/// Bytes of a token id.
const TOKEN_BYTES: u64 = 4;

/// The layer with the setting that tells it from others of its kind.
pub fn describe(spec: &LayerSpec) -> String {
    let kind = spec.kind();
    match spec {
        LayerSpec::Linear { out, .. } => format!("{kind} {out}"),
        LayerSpec::Conv2d { out, kernel, .. } => format!("{kind} {out}, {}", shape_text(kernel)),
        LayerSpec::MaxPool2d(pool) | LayerSpec::AvgPool2d(pool) => {
            format!("{kind} {}", shape_text(&pool.kernel))
        }
        LayerSpec::Dropout { p } => format!("{kind} {p}"),
        LayerSpec::Embedding { vocab, dim } => format!("{kind} {vocab}x{dim}"),
        LayerSpec::Attention { heads, .. } => format!("{kind} {heads}"),
        _ => kind.to_owned(),
    }
}

/// `[1, 28, 28]` as `1x28x28`.
pub(super) fn shape_text(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    dims.join("x")
}
