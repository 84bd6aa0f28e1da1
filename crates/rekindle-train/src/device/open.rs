//! From a [`DeviceId`] to burn's device and its meter: the only place that names burn's backends.

use std::sync::Arc;

use burn::tensor::Device;

use super::{DeviceId, Unavailable};
use rekindle::{dtype::Dtype, meter::Meter};

/// An open device on which tensors can be created, with a meter for its memory.
pub struct OpenDevice {
    /// burn's device, with autodiff.
    pub device: Device,
    /// Reads its memory.
    pub meter: Arc<dyn Meter>,
}

/// Opens a device that was [probed](super::probe) before: opening a GPU that does not work may panic below burn.
///
/// # Errors
///
/// If the device's backend is not built in, its memory cannot be measured, or it does not support `dtype`.
pub fn open(id: DeviceId, dtype: Dtype) -> Result<OpenDevice, Unavailable> {
    let opened: OpenDevice = match id {
        #[cfg(feature = "flex")]
        DeviceId::Cpu => OpenDevice {
            device: Device::flex().autodiff(),
            meter: Arc::new(
                rekindle::meter::HostMeter::new()
                    .map_err(|error| Unavailable::setup(error.to_string()))?,
            ),
        },
        #[cfg(feature = "cuda")]
        DeviceId::Cuda(index) => {
            use super::nvml::{GpuHeld, own_memory};
            use rekindle::{plan::Bytes, record::driver::Driver};
            let held = || GpuHeld::now(index).unwrap_or_default();
            let before = held();
            let (device, meter) = pooled(Device::cuda(index));
            // The first reading creates the driver's context; nothing is reserved yet.
            meter.read();
            let context = super::nvidia::note_context(index, before.taken_until(held()));
            let meter = Arc::new(meter.with_driver(Driver {
                context,
                unit: Bytes(super::nvidia::ALLOCATION_UNIT),
                held: Box::new(own_memory(index)),
            }));
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
        _ => return Err(Unavailable::not_built_in(id.feature())),
    };
    let supports = |dtype: &Dtype| opened.device.supports_dtype(dtype.float());
    if supports(&dtype) {
        return Ok(opened);
    }
    let supported = Dtype::ALL.iter().filter(|dtype| supports(dtype));
    let names: Vec<String> = supported.map(Dtype::to_string).collect();
    Err(Unavailable::setup(format!(
        "{id} does not compute in {dtype}; it does in {}: name one of these in `dtype` of [train], or by `--dtype`, or another \
         device",
        names.join(", ")
    )))
}

/// The device with autodiff, and a meter of its pools, which are configured before the device is used.
#[cfg(feature = "cubecl")]
fn pooled(device: Device) -> (Device, rekindle::meter::PoolMeter) {
    let device = device.autodiff();
    let meter = rekindle::meter::PoolMeter::new(device.clone());
    (device, meter)
}
