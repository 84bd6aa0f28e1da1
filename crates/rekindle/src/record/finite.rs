//! One check before a step hands anything out: a value that is not finite, or a buffer that was never written.
//!
//! A device that runs out of memory fails buffers, skips the kernels that need them, and says so only where a value is
//! read. One number that depends on the loss and on every gradient shows that, and infinities and NaN as well.

use burn::tensor::{DispatchTensor, FloatDType, Tensor, TensorData};

use super::RecordError;

/// Reads one number that depends on all.
pub(super) fn check(
    loss: &Tensor<1>,
    gradients: &[(usize, DispatchTensor)],
    path: impl Fn(usize) -> String,
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
    for (place, gradient) in gradients {
        if data(gradient)?
            .iter::<f64>()
            .any(|value| !value.is_finite())
        {
            return Err(RecordError::NotFinite {
                what: format!("the gradient of `{}`", path(*place)),
            });
        }
    }
    // Finite numbers whose sum is too large.
    Ok(())
}

fn read(value: Tensor<1>) -> Result<f64, RecordError> {
    let data = value.try_into_data();
    let data = data.map_err(|error| RecordError::Device(error.to_string()))?;
    Ok(data.iter::<f64>().next().unwrap_or_default())
}

fn sum(tensor: &DispatchTensor) -> Tensor<1> {
    macro_rules! of_rank {
        ($($rank:literal),*) => {
            match burn_backend::TensorMetadata::rank(tensor) {
                $($rank => Tensor::<$rank>::from_dispatch(tensor.clone()).sum(),)*
                rank => panic!("a parameter of rank {rank}"),
            }
        };
    }
    of_rank!(1, 2, 3, 4, 5, 6, 7, 8).cast(FloatDType::F32)
}

fn data(tensor: &DispatchTensor) -> Result<TensorData, RecordError> {
    macro_rules! of_rank {
        ($($rank:literal),*) => {
            match burn_backend::TensorMetadata::rank(tensor) {
                $($rank => Tensor::<$rank>::from_dispatch(tensor.clone()).try_into_data(),)*
                rank => panic!("a parameter of rank {rank}"),
            }
        };
    }
    of_rank!(1, 2, 3, 4, 5, 6, 7, 8).map_err(|error| RecordError::Device(error.to_string()))
}
