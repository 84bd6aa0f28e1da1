//! A batch on the device.

use burn::tensor::{Device, Tensor};
use rekindle::dtype::Dtype;

use crate::{
    data::batch::{Batch, Inputs, Targets},
    engine::StepBatch,
    loss::TargetTensor,
    loss_scale::LossScaler,
    model::value::Value,
    train_error::TrainError,
};

/// Moves a batch [to the device](to_device), as the input of a step.
pub(crate) fn step_batch(
    batch: Batch,
    dtype: Dtype,
    scaler: &LossScaler,
    device: &Device,
) -> Result<StepBatch, TrainError> {
    let (input, targets) = to_device(batch, dtype, device)?;
    Ok((input, targets, scaler.tensor(device)))
}

/// Moves a batch to the device, its inputs in the model's type.
///
/// # Errors
///
/// If its values do not fill its shape.
pub fn to_device(
    batch: Batch,
    dtype: Dtype,
    device: &Device,
) -> Result<(Value, TargetTensor), TrainError> {
    let input = match batch.inputs {
        Inputs::Floats { values, shape } => Value::from_floats_in(dtype, values, &shape, device)?,
        Inputs::Tokens { values, shape } => Value::from_tokens(values, &shape, device)?,
    };
    let targets = match batch.targets {
        Targets::Classes(classes) => {
            TargetTensor::Classes(Tensor::from_data(classes.as_slice(), device))
        }
        Targets::Values { values, width } => {
            let shape = [values.len() / width.max(1), width];
            TargetTensor::Values(Value::from_floats(values, &shape, device)?.into_float2()?)
        }
    };
    Ok((input, targets))
}
