//! Errors of layers that cannot take their input.

use super::spec::SampleShape;

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
