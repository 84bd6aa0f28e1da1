//! Shapes of all activations of a model. The batch dimension is never part of a shape here.
//!
//! One sample of an activation has one to three dimensions, so that tensors have two to four with the batch.

use super::spec::SampleShape;

/// Maximum number of values of one sample of an activation, or of the parameters of one layer.
///
/// A petabyte of `f32`: larger sizes are mistakes, and sums of smaller ones do not overflow `u64`.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// The shapes of a model's activations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Shape of one input sample.
    pub input: SampleShape,
    /// The layers, in the order of [`ModelSpec::layers`](super::spec::ModelSpec::layers).
    pub layers: Vec<LayerShape>,
}

/// The shapes of a layer's input and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerShape {
    /// Shape of one sample before the layer.
    pub input: SampleShape,
    /// Shape of one sample after the layer.
    pub output: SampleShape,
    /// Number of values that training changes, without running statistics.
    pub param_count: u64,
    /// The layers inside a residual; empty for any other layer.
    pub inner: Vec<LayerShape>,
}

impl ModelShape {
    /// Shape of one sample of the model's output.
    #[must_use]
    pub fn output(&self) -> &SampleShape {
        self.layers
            .last()
            .map_or(&self.input, |layer| &layer.output)
    }

    /// Number of values that training changes.
    #[must_use]
    pub fn param_count(&self) -> u64 {
        LayerShape::param_sum(&self.layers)
    }
}

impl LayerShape {
    /// Number of values that training changes in all of these layers.
    #[must_use]
    pub fn param_sum(layers: &[Self]) -> u64 {
        layers
            .iter()
            .fold(0, |sum, layer| sum.saturating_add(layer.param_count))
    }
}
