//! From a device to a backend: the only place that names burn's backends.

use std::sync::Arc;

use thiserror::Error;

use super::Device;
use crate::{
    backend::CheckpointBackend,
    meter::{Meter, NotInstalled},
};

/// Something to do on whichever backend a device has.
pub trait Task {
    /// What it gives.
    type Output;

    /// Does it.
    fn run<B: CheckpointBackend>(self, device: B::Device, meter: Arc<dyn Meter>) -> Self::Output;
}

/// Why a device has no backend here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DispatchError {
    /// It is not part of this build.
    #[error("{device} is not built in: build with `--features {}`", device.feature())]
    NotBuiltIn {
        /// The device.
        device: Device,
    },
    /// Its memory cannot be measured.
    #[error(transparent)]
    Meter(#[from] NotInstalled),
}

/// Runs a task on a device that is known to answer (see [`probe`](super::probe)): asking for a GPU that does not may
/// panic below burn.
///
/// # Errors
///
/// If the device's backend is not built in, or its memory cannot be measured.
pub fn dispatch<T: Task>(device: Device, task: T) -> Result<T::Output, DispatchError> {
    match device {
        #[cfg(feature = "flex")]
        Device::Cpu => {
            type B = burn::backend::Autodiff<burn::backend::Flex>;
            let meter = Arc::new(crate::meter::HostMeter::new()?);
            Ok(task.run::<B>(Default::default(), meter))
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            type Cuda = burn::backend::Cuda;
            let cuda = burn::backend::cuda::CudaDevice::new(index);
            let meter =
                crate::meter::CubeMeter::<Cuda, cubecl::cuda::CudaRuntime>::new(cuda.clone());
            Ok(task.run::<burn::backend::Autodiff<Cuda>>(cuda, Arc::new(meter)))
        }
        #[cfg(feature = "wgpu")]
        Device::Wgpu(index) => {
            use burn::backend::wgpu::WgpuDevice;
            type Wgpu = burn::backend::Wgpu;
            let wgpu = match index {
                0 => WgpuDevice::DefaultDevice,
                _ => WgpuDevice::DiscreteGpu(index - 1),
            };
            let meter =
                crate::meter::CubeMeter::<Wgpu, cubecl::wgpu::WgpuRuntime>::new(wgpu.clone());
            Ok(task.run::<burn::backend::Autodiff<Wgpu>>(wgpu, Arc::new(meter)))
        }
        #[allow(
            unreachable_patterns,
            reason = "reached in builds without all backends"
        )]
        _ => Err(DispatchError::NotBuiltIn { device }),
    }
}
