//! A whole GPU, as NVIDIA's management library sees it: every process, the driver's context included.

use nvml_wrapper::{Device, Nvml, enums::device::UsedGpuMemory, error::NvmlError as WrapperError};
use rekindle_plan::Bytes;
use serde::Serialize;
use thiserror::Error;

use crate::device::GpuProcess;

/// Memory of a whole GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NvmlMemory {
    /// Everything the card has.
    pub total_bytes: Bytes,
    /// What all processes and the driver hold.
    pub used_bytes: Bytes,
    /// What is left.
    pub free_bytes: Bytes,
}

/// NVML gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "NVIDIA's management library (`libnvidia-ml.so.1`), which says what the driver's context takes, does not answer \
     ({reason}): it comes with the driver; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)]
pub struct NvmlError {
    reason: String,
}

impl From<WrapperError> for NvmlError {
    fn from(error: WrapperError) -> Self {
        Self {
            reason: error.to_string(),
        }
    }
}

/// CUDA numbers GPUs by its own settings: the library is asked by the address on the bus.
fn device<'a>(nvml: &'a Nvml, number: usize) -> Result<Device<'a>, WrapperError> {
    let gpus = rekindle_cuda::gpus().unwrap_or_default();
    match gpus.get(number) {
        Some(gpu) => nvml
            .device_by_pci_bus_id(gpu.pci.as_str())
            .or_else(|_| nvml.device_by_index(number as u32)),
        None => nvml.device_by_index(number as u32),
    }
}

/// Reads the memory of the GPU that CUDA gives this number.
///
/// # Errors
///
/// Where the library is missing or the GPU does not answer.
pub fn nvml_memory(number: usize) -> Result<NvmlMemory, NvmlError> {
    let nvml = Nvml::init()?;
    let memory = device(&nvml, number)?.memory_info()?;
    Ok(NvmlMemory {
        total_bytes: Bytes(memory.total),
        used_bytes: Bytes(memory.used),
        free_bytes: Bytes(memory.free),
    })
}

/// The other processes that hold memory of the GPU that CUDA gives this number, the largest first; none where the library
/// does not say.
#[must_use]
pub fn nvml_processes(number: usize) -> Vec<GpuProcess> {
    let read = || -> Result<Vec<GpuProcess>, WrapperError> {
        let nvml = Nvml::init()?;
        let running = device(&nvml, number)?.running_compute_processes()?;
        let others = running
            .into_iter()
            .filter(|process| process.pid != std::process::id());
        let mut processes: Vec<GpuProcess> = others
            .map(|process| GpuProcess {
                pid: process.pid,
                name: nvml.sys_process_name(process.pid, 80).ok(),
                bytes: match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                    UsedGpuMemory::Unavailable => None,
                },
            })
            .collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        Ok(processes)
    };
    read().unwrap_or_default()
}

/// The driver's release, `580.159.04`.
///
/// # Errors
///
/// Where the library is missing.
pub fn nvml_driver() -> Result<String, NvmlError> {
    Ok(Nvml::init()?.sys_driver_version()?)
}
