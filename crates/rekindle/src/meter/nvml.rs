//! The whole GPU's memory, as NVIDIA's management library sees it: every process, the driver's context included.

use nvml_wrapper::{Nvml, error::NvmlError as WrapperError};
use rekindle_plan::Bytes;
use serde::Serialize;
use thiserror::Error;

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
#[derive(Debug, Error)]
#[error("NVIDIA's management library gave no memory figure for GPU {index}: {source}")]
pub struct NvmlError {
    index: u32,
    source: WrapperError,
}

/// Reads the memory of GPU `index`.
///
/// # Errors
///
/// Where the library is missing or the GPU does not answer.
pub fn nvml_memory(index: u32) -> Result<NvmlMemory, NvmlError> {
    let read = || {
        let nvml = Nvml::init()?;
        let device = nvml.device_by_index(index)?;
        device.memory_info()
    };
    match read() {
        Ok(memory) => Ok(NvmlMemory {
            total_bytes: Bytes(memory.total),
            used_bytes: Bytes(memory.used),
            free_bytes: Bytes(memory.free),
        }),
        Err(source) => Err(NvmlError { index, source }),
    }
}
