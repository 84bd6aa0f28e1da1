//! Shapes of all activations of a model. The batch dimension is never part of a shape here.
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
