//! Modules on a device, their parameters drawn.

use burn::{
    module::{Initializer, Module, Param},
    nn::{Embedding, Linear},
    tensor::{Device, Tensor, TensorData},
};

use super::{
    init::{independent_values, mirrored},
    mirror::mirrored_weight,
    spec::LayerSpec,
};
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
    /// The linear layer `list[index]` from `inputs` to `outputs` features.
    pub(super) fn linear(
        &mut self,
        list: &[LayerSpec],
        index: usize,
        [inputs, outputs]: [usize; 2],
        has_bias: bool,
    ) -> Linear {
        let (dims, device) = ([inputs, outputs], self.device);
        let pairs_in = mirrored(list, index);
        let (weight, bias) = match pairs_in {
            Some(_) => (Initializer::Zeros, Initializer::Zeros),
            None => independent_values(&list[index + 1..], inputs as f64, has_bias),
        };
        let weight: Param<Tensor<2>> = match (&mut self.staging, pairs_in) {
            (None, _) => Initializer::Zeros.init(dims, device),
            (Some(_), None) => weight.init(dims, device),
            (Some(staging), Some(pairs_in)) => {
                let values = mirrored_weight(inputs, outputs, pairs_in, device);
                let bytes = size_of_val(values.as_slice()) as u64;
                let weight = Param::from_data(TensorData::new(values, dims), device);
                staging.copied(bytes, device);
                weight
            }
        };
        let bias = has_bias.then(|| bias.init([outputs], device));
        self.drawn(Linear { weight, bias })
    }

    /// The module with every parameter drawn, as burn does where a value is first used, and rounded.
    pub(super) fn drawn<M: Module>(&self, module: M) -> M {
        self.dtype.cast(module)
    }
}
