//! Modules on a device, their parameters drawn.

use burn::{
    module::{Initializer, Module, Param},
    nn::Embedding,
    tensor::{Device, Tensor, TensorData},
};

use super::{init::FirstWeight, mirror::mirrored_weight};
use crate::device::staging::Staging;
use rekindle::dtype::Dtype;

/// Draws the parameters of one layer after the other.
pub(super) struct Maker<'a> {
    pub(super) device: &'a Device,
    /// All parameters are drawn in `f32` and rounded to this type.
    pub(super) dtype: Dtype,
    /// Counts what is copied to the device. Without it no value is drawn on the host.
    pub(super) staging: Option<Staging>,
    /// The model's embedding once it is made, whose weight a projection shares.
    pub(super) embedding: Option<Embedding>,
}

impl Maker<'_> {
    /// A linear layer's weight `[inputs, outputs]` by its initialisation.
    pub(super) fn weight(&mut self, first: FirstWeight, dims: [usize; 2]) -> Param<Tensor<2>> {
        let device = self.device;
        let Some(staging) = &mut self.staging else {
            return Initializer::Zeros.init(dims, device);
        };
        match first {
            FirstWeight::Drawn(initializer) => initializer.init(dims, device),
            FirstWeight::Mirrored { pairs_in } => {
                let [inputs, outputs] = dims;
                let values = mirrored_weight(inputs, outputs, pairs_in, device);
                let bytes = size_of_val(values.as_slice()) as u64;
                let weight = Param::from_data(TensorData::new(values, dims), device);
                staging.copied(bytes, device);
                weight
            }
        }
    }

    /// The module with every parameter drawn, as burn does where a value is first used, and rounded.
    pub(super) fn drawn<M: Module>(&self, module: M) -> M {
        self.dtype.cast(module)
    }
}
