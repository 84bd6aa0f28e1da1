//! The multiply-adds of a layer for one sample, and its running statistics.

use super::{shape::LayerShape, spec::LayerSpec};

impl LayerShape {
    /// Multiply-adds in the matrix products of one sample's forward pass.
    #[must_use]
    pub fn multiply_adds(&self, layer: &LayerSpec) -> u64 {
        let outputs = self.output.elements();
        let [first, last] = [self.input.dims.first(), self.input.dims.last()]
            .map(|size| size.copied().unwrap_or(0) as u64);
        match layer {
            LayerSpec::Linear { .. } | LayerSpec::Unembedding { .. } => {
                outputs.saturating_mul(last)
            }
            LayerSpec::Conv2d { kernel, .. } => {
                let window = kernel.iter().map(|&size| size as u64);
                window.chain([first]).fold(outputs, u64::saturating_mul)
            }
            // Four linear maps, and two products between all pairs of positions.
            LayerSpec::Attention { .. } => outputs.saturating_mul(4 * last + 2 * first),
            LayerSpec::Residual(layers) => {
                let inner = layers.iter().zip(&self.inner);
                inner.map(|(layer, shape)| shape.multiply_adds(layer)).sum()
            }
            _ => 0,
        }
    }

    /// Number of running statistics of the layer itself, which are kept and not trained.
    #[must_use]
    pub fn statistics(&self, layer: &LayerSpec) -> u64 {
        match layer {
            LayerSpec::BatchNorm { .. } => self.param_count,
            _ => 0,
        }
    }
}
