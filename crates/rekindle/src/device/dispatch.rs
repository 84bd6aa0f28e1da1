//! From a device to a backend: the only place that names burn's backends.

use std::sync::Arc;

use rekindle_plan::pools::PoolMode;
use thiserror::Error;

use super::Device;
use crate::{
    backend::CheckpointBackend,
    dtype::Dtype,
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
#[derive(Debug, Clone, PartialEq, Eq, Error)]
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
    /// It does not compute with such numbers.
    #[error(
        "{device} does not compute in {dtype}; it does in {}",
        listed(supported)
    )]
    Dtype {
        /// The device.
        device: Device,
        /// The type asked for.
        dtype: Dtype,
        /// The types that it computes in.
        supported: Vec<Dtype>,
    },
}

fn listed(dtypes: &[Dtype]) -> String {
    let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
    names.join(", ")
}

/// Asks the device.
fn require<B: CheckpointBackend>(
    device: Device,
    backend_device: &B::Device,
    dtype: Dtype,
) -> Result<(), DispatchError> {
    let supported = Dtype::supported::<B>(backend_device);
    if supported.contains(&dtype) {
        return Ok(());
    }
    Err(DispatchError::Dtype {
        device,
        dtype,
        supported,
    })
}

/// Runs a task in a type of numbers on a device that is known to answer (see [`probe`](super::probe)): asking for a GPU that does not may
/// panic below burn. On a GPU the first task of a process decides which kind of pools there is.
///
/// # Errors
///
/// If the device's backend is not built in, its memory cannot be measured, or it does not compute in `dtype`.
#[cfg_attr(
    not(feature = "cubecl"),
    expect(unused_variables, reason = "only GPUs have pools")
)]
pub fn dispatch<T: Task>(
    device: Device,
    dtype: Dtype,
    pools: PoolMode,
    task: T,
) -> Result<T::Output, DispatchError> {
    match device {
        #[cfg(feature = "flex")]
        Device::Cpu => {
            type B = burn::backend::Autodiff<burn::backend::Flex>;
            let meter = Arc::new(crate::meter::HostMeter::new()?);
            let cpu = Default::default();
            require::<B>(device, &cpu, dtype)?;
            Ok(task.run::<B>(cpu, meter))
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            type Cuda = burn::backend::Cuda;
            let cuda = burn::backend::cuda::CudaDevice::new(index);
            let pools = super::pools::set(pools);
            let used = || crate::meter::nvml_memory(index as u32).ok();
            let before = used();
            let meter = crate::meter::CubeMeter::<Cuda, cubecl::cuda::CudaRuntime>::new(
                cuda.clone(),
                pools,
            );
            // The first reading makes the driver's context; nothing is reserved yet.
            meter.read();
            let context = before.zip(used()).map(|(before, after)| {
                rekindle_plan::Bytes(after.used_bytes.0.saturating_sub(before.used_bytes.0))
            });
            let meter = meter.with_context(context.unwrap_or_default());
            type B = burn::backend::Autodiff<Cuda>;
            require::<B>(device, &cuda, dtype)?;
            Ok(task.run::<B>(cuda, Arc::new(meter)))
        }
        #[cfg(feature = "wgpu")]
        Device::Wgpu(index) => {
            use burn::backend::wgpu::WgpuDevice;
            type Wgpu = burn::backend::Wgpu;
            let wgpu = match index {
                0 => WgpuDevice::DefaultDevice,
                _ => WgpuDevice::DiscreteGpu(index - 1),
            };
            let meter = crate::meter::CubeMeter::<Wgpu, cubecl::wgpu::WgpuRuntime>::new(
                wgpu.clone(),
                super::pools::set(pools),
            );
            type B = burn::backend::Autodiff<Wgpu>;
            require::<B>(device, &wgpu, dtype)?;
            Ok(task.run::<B>(wgpu, Arc::new(meter)))
        }
        #[allow(
            unreachable_patterns,
            reason = "reached in builds without all backends"
        )]
        _ => Err(DispatchError::NotBuiltIn { device }),
    }
}
