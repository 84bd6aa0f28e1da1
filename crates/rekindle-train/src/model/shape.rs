//! Shapes of all activations of a model, and the error of a layer that cannot take its input. The batch dimension is
//! never part of a shape here.
//!
//! One sample of an activation has one to three dimensions, so that tensors have two to four with the batch.

use super::{spec::SampleShape, stages::ModelStage};

/// Maximum number of values of one sample of an activation, or of the parameters of one layer.
///
/// A petabyte of `f32`: larger sizes are mistakes, and sums of smaller ones do not overflow `u64`.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// The shapes of a model's activations, and its stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Shape of one input sample.
    pub input: SampleShape,
    /// The layers, in the order of [`ModelSpec::layers`](super::spec::ModelSpec::layers).
    pub layers: Vec<LayerShape>,
    /// The stages in order. Together they cover every layer once.
    pub stages: Vec<ModelStage>,
}

/// What a layer makes of its input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerShape {
    /// Shape of one sample after the layer.
    pub output: SampleShape,
    /// Number of values that training changes, without running statistics.
    pub param_count: u64,
}

impl ModelShape {
    /// Shape of one sample before the layer of this index.
    pub(super) fn before(&self, layer: usize) -> &SampleShape {
        let before = self.layers[..layer].last();
        before.map_or(&self.input, |before| &before.output)
    }

    /// Shape of one sample of the model's output.
    #[must_use]
    pub fn output(&self) -> &SampleShape {
        self.before(self.layers.len())
    }

    /// Number of values that training changes.
    #[must_use]
    pub fn param_count(&self) -> u64 {
        LayerShape::param_sum(&self.layers)
    }
}

impl LayerShape {
    /// Number of values that training changes in all of these layers.
    pub(super) fn param_sum<'a>(layers: impl IntoIterator<Item = &'a Self>) -> u64 {
        let counts = layers.into_iter().map(|layer| layer.param_count);
        counts.fold(0, u64::saturating_add)
    }
}

/// An invalid layer: its settings are wrong, or do not fit its input.
///
/// Reads as `layer 2 (conv2d) got [784]: it needs [channels, height, width]; ...`, and inside residuals `layer 3.0.1`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{} got {got}: {problem}", self.place())]
pub struct ShapeError {
    /// The layer: its index in the model's list, then that inside each residual around it, from 0. Empty for the model.
    pub path: Vec<usize>,
    /// The layer's name in a config; `model` if the model itself is wrong.
    pub kind: &'static str,
    /// The shape that reaches the layer.
    pub got: SampleShape,
    /// The problem, and what the layer requires instead.
    pub problem: String,
}

impl ShapeError {
    fn place(&self) -> String {
        let indices: Vec<String> = self.path.iter().map(ToString::to_string).collect();
        if indices.is_empty() {
            self.kind.to_owned()
        } else {
            format!("layer {} ({})", indices.join("."), self.kind)
        }
    }
}
