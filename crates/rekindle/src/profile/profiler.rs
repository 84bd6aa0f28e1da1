//! What a chain is measured with.

use burn::tensor::Device;

use crate::meter::Meter;

/// How to measure.
pub struct Profiler<'a, O> {
    /// Where the model is.
    pub device: &'a Device,
    /// Reads its memory.
    pub meter: &'a dyn Meter,
    /// The optimizer whose step is measured; it stays as it is.
    pub optimizer: &'a O,
}
