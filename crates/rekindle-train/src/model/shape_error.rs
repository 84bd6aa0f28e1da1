//! Errors of layers that cannot take their input.

use std::fmt;

use super::spec::SampleShape;

/// The position of a layer: its index in the model's list, then its index inside each enclosing residual.
///
/// All indices start at 0. An empty path means the model itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LayerPath(pub Vec<usize>);

/// `3`, or `3.0.1` for a layer inside residuals.
impl fmt::Display for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, index) in self.0.iter().enumerate() {
            let dot = if depth == 0 { "" } else { "." };
            write!(f, "{dot}{index}")?;
        }
        Ok(())
    }
}

/// An invalid layer: its settings are wrong, or do not fit its input.
///
/// Reads as `layer 2 (conv2d) got [784]: it wants [channels, height, width]; ...`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{} got {got}: {problem}", self.place())]
pub struct ShapeError {
    /// The layer.
    pub path: LayerPath,
    /// The layer's name in a config; `model` if the model itself is wrong.
    pub kind: &'static str,
    /// The shape that reaches the layer.
    pub got: SampleShape,
    /// The problem, and what the layer requires instead.
    pub problem: String,
}

impl ShapeError {
    fn place(&self) -> String {
        if self.path.0.is_empty() {
            self.kind.to_owned()
        } else {
            format!("layer {} ({})", self.path, self.kind)
        }
    }
}
