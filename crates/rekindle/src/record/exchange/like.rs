//! The form of a tensor while its values are sent over the network.

use burn::tensor::{DType, Device, DispatchTensor, Shape, Tensor, TensorData};

use crate::record::{RecordError, rank::of_rank};

/// All properties of a tensor besides its values.
#[derive(Clone)]
pub(super) struct Like {
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl Like {
    /// Copies a tensor's values, in 32 bits and multiplied by the rank's share. The values of a rank without samples
    /// are ignored, whatever it computed.
    pub(super) fn take(
        tensor: DispatchTensor,
        share: f64,
    ) -> Result<(Self, Vec<f32>), RecordError> {
        let (like, values) = of_rank!(&tensor, D => {
            let tensor = Tensor::<D>::from_dispatch(tensor);
            let like = Self { shape: tensor.shape(), dtype: tensor.dtype(), device: tensor.device() };
            (like, tensor.try_into_vec_as::<f32>())
        });
        let mut values = values.map_err(|error| RecordError::Device(error.to_string()))?;
        for value in &mut values {
            *value = match share > 0.0 {
                true => (f64::from(*value) * share) as f32,
                false => 0.0,
            };
        }
        Ok((like, values))
    }

    pub(super) fn tensor(self, values: Vec<f32>) -> DispatchTensor {
        of_rank!(@ self.shape.num_dims(), D => {
            let data = TensorData::new(values, self.shape).convert_dtype(self.dtype);
            Tensor::<D>::from_data(data, (&self.device, self.dtype)).into_dispatch()
        })
    }
}
