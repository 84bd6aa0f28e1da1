//! A check before a step returns anything, which finds values that are not finite and buffers that were never written.
//!
//! A device that runs out of memory fails buffers, skips the kernels that need them, and reports the error only when a
//! value is read. Reading one number that depends on the loss and on every gradient reveals that, and also infinities
//! and NaN.

use burn::tensor::{DispatchTensor, FloatDType, Tensor};

use super::{RecordError, rank::of_rank};

/// Reads one number that depends on all values. Gradients are passed with the paths of their parameters.
pub(super) fn check(
    loss: &Tensor<1>,
    gradients: &[(&str, &DispatchTensor)],
) -> Result<(), RecordError> {
    let sums = gradients.iter().map(|(_, gradient)| sum(gradient));
    let sum = sums.fold(loss.clone().cast(FloatDType::F32), |all, one| all + one);
    if read(sum)?.is_finite() {
        return Ok(());
    }
    if !read(loss.clone())?.is_finite() {
        return Err(RecordError::NotFinite {
            what: "the loss".into(),
        });
    }
    // All values may be finite, and only their sum overflowed.
    for (path, gradient) in gradients {
        check_gradient(path, gradient)?;
    }
    Ok(())
}

/// Reads one number that depends on one gradient, before it updates its parameter.
pub(super) fn check_gradient(path: &str, gradient: &DispatchTensor) -> Result<(), RecordError> {
    let finite = |tensor: &DispatchTensor| {
        let data =
            of_rank!(tensor, D => Tensor::<D>::from_dispatch(tensor.clone()).try_into_data());
        let data = data.map_err(|error| RecordError::Device(error.to_string()))?;
        Ok::<_, RecordError>(data.iter::<f64>().all(|value| value.is_finite()))
    };
    match read(sum(gradient))?.is_finite() || finite(gradient)? {
        true => Ok(()),
        false => Err(RecordError::NotFinite {
            what: format!("the gradient of `{path}`"),
        }),
    }
}

fn read(value: Tensor<1>) -> Result<f64, RecordError> {
    let data = value.try_into_data();
    let data = data.map_err(|error| RecordError::Device(error.to_string()))?;
    Ok(data.iter::<f64>().next().unwrap_or_default())
}

fn sum(tensor: &DispatchTensor) -> Tensor<1> {
    let sum = of_rank!(tensor, D => Tensor::<D>::from_dispatch(tensor.clone()).sum());
    sum.cast(FloatDType::F32)
}
