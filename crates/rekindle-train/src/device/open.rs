//! From a [`DeviceId`] to burn's device and its meter: the only place that names burn's backends.

use std::sync::Arc;

use burn::tensor::Device;
use thiserror::Error;

use super::DeviceId;
use rekindle::{
    dtype::Dtype,
    meter::{Meter, NotInstalled},
};

/// An open device on which tensors can be created, with a meter for its memory.
pub struct OpenDevice {
    /// burn's device, with autodiff.
    pub device: Device,
    /// Reads its memory.
    pub meter: Arc<dyn Meter>,
}

/// The error of a device that cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// It is not part of this build.
    #[error("{device} is not built in: build with `--features {}`", device.feature())]
    NotBuiltIn {
        /// The device.
        device: DeviceId,
    },
    /// Its memory cannot be measured.
    #[error(transparent)]
    Meter(#[from] NotInstalled),
    /// The device does not support the number type.
    #[error(
        "{device} does not compute in {dtype}; it does in {}",
        listed(supported)
    )]
    Dtype {
        /// The device.
        device: DeviceId,
        /// The requested type.
        dtype: Dtype,
        /// The types that it supports.
        supported: Vec<Dtype>,
    },
}

fn listed(dtypes: &[Dtype]) -> String {
    let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
    names.join(", ")
}

/// Opens a device that was [probed](super::probe) before: opening a GPU that does not work may panic below burn.
///
/// # Errors
///
/// If the device's backend is not built in, its memory cannot be measured, or it does not support `dtype`.
pub fn open(id: DeviceId, dtype: Dtype) -> Result<OpenDevice, DeviceError> {
    let opened: OpenDevice = match id {
        #[cfg(feature = "flex")]
        DeviceId::Cpu => OpenDevice {
            device: Device::flex().autodiff(),
            meter: Arc::new(rekindle::meter::HostMeter::new()?),
        },
        #[cfg(feature = "cuda")]
        DeviceId::Cuda(index) => {
            use super::nvml::GpuHeld;
            let held = || GpuHeld::now(index).unwrap_or_default();
            let before = held();
            let (device, meter) = pooled(Device::cuda(index));
            // The first reading creates the driver's context; nothing is reserved yet.
            meter.read();
            let context = super::nvidia::note_context(index, before.taken_until(held()));
            let meter = Arc::new(meter.with_context(context));
            OpenDevice { device, meter }
        }
        #[cfg(feature = "wgpu")]
        DeviceId::Wgpu(index) => {
            use burn::tensor::DeviceKind;
            let (device, meter) = pooled(Device::wgpu(match index {
                0 => DeviceKind::DefaultDevice,
                _ => DeviceKind::DiscreteGpu(index - 1),
            }));
            let meter = Arc::new(meter);
            OpenDevice { device, meter }
        }
        #[allow(
            unreachable_patterns,
            reason = "reached in builds without all backends"
        )]
        _ => return Err(DeviceError::NotBuiltIn { device: id }),
    };
    let supported = Dtype::supported(&opened.device);
    if supported.contains(&dtype) {
        return Ok(opened);
    }
    Err(DeviceError::Dtype {
        device: id,
        dtype,
        supported,
    })
}

/// The device with autodiff, and a meter of its pools, which are configured before the device is used.
#[cfg(feature = "cubecl")]
fn pooled(device: Device) -> (Device, rekindle::meter::PoolMeter) {
    let device = device.autodiff();
    let meter = rekindle::meter::PoolMeter::new(device.clone());
    (device, meter)
}
