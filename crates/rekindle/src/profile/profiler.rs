//! The device, meter and optimizer with which a chain is measured.

use burn::tensor::Device;

use crate::meter::Meter;

/// How to measure.
pub struct Profiler<'a, O> {
    /// The device of the model.
    pub device: &'a Device,
    /// Reads the device's memory.
    pub meter: &'a dyn Meter,
    /// The optimizer whose step is measured; it is not changed.
    pub optimizer: &'a O,
}
