//! The memory of a whole GPU from NVIDIA's management library: all processes, the driver's context included.

use std::sync::OnceLock;

use nvml_wrapper::{
    Device, Nvml,
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::{MemoryInfo, ProcessInfo},
};
use rekindle_plan::Bytes;

use super::Unavailable;

impl From<NvmlError> for Unavailable {
    fn from(error: NvmlError) -> Self {
        Self::setup(format!(
            "NVIDIA's management library (`libnvidia-ml.so.1`) does not answer: {error}. It comes with the driver; \
             a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ))
    }
}

/// The library, opened once: opening it takes longer than all that it is asked.
fn nvml() -> Result<&'static Nvml, NvmlError> {
    static NVML: OnceLock<Nvml> = OnceLock::new();
    match NVML.get() {
        Some(nvml) => Ok(nvml),
        None => {
            let nvml = Nvml::init()?;
            Ok(NVML.get_or_init(|| nvml))
        }
    }
}

/// CUDA numbers GPUs by its own settings, so the library is queried by the bus address.
fn device<'a>(nvml: &'a Nvml, number: usize) -> Result<Device<'a>, NvmlError> {
    let gpus = rekindle_cuda::gpus().unwrap_or_default();
    match gpus.get(number) {
        Some(gpu) => nvml
            .device_by_pci_bus_id(gpu.pci.as_str())
            .or_else(|_| nvml.device_by_index(number as u32)),
        None => nvml.device_by_index(number as u32),
    }
}

/// Reads the memory of the GPU that CUDA gives this number: what all processes and the driver hold, and what is left.
pub(crate) fn nvml_memory(number: usize) -> Result<MemoryInfo, Unavailable> {
    Ok(device(nvml()?, number)?.memory_info()?)
}

/// Memory in use on a GPU at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GpuHeld {
    all: Bytes,
    /// Memory of this process, if the library lists it; in some containers it does not.
    own: Option<Bytes>,
}

impl GpuHeld {
    /// The GPU that CUDA gives this number, now.
    pub(crate) fn now(number: usize) -> Result<Self, Unavailable> {
        let gpu = device(nvml()?, number)?;
        Ok(Self {
            all: Bytes(gpu.memory_info()?.used),
            own: held_here(&gpu),
        })
    }

    /// Memory that this process has taken since then. The share of other processes is left out if the library lists
    /// processes.
    pub(crate) fn taken_until(self, later: Self) -> Bytes {
        let (before, after) = match later.own {
            Some(own) => (self.own.unwrap_or_default(), own),
            None => (self.all, later.all),
        };
        Bytes(after.0.saturating_sub(before.0))
    }
}

/// Reads the memory that this process holds of the GPU with this CUDA number, its context included, if the library lists
/// it. The GPU is looked up once: the driver lists them all for that.
pub(super) fn own_memory(number: usize) -> impl Fn() -> Option<Bytes> {
    let gpu = nvml().and_then(|nvml| device(nvml, number)).ok();
    move || held_here(gpu.as_ref()?)
}

fn held_here(gpu: &Device) -> Option<Bytes> {
    let mut processes = processes(gpu).ok()?.into_iter();
    processes.find(|&(pid, _)| pid == std::process::id())?.1
}

/// The processes that compute on a GPU, and what each holds of it, if the library says so.
fn processes(gpu: &Device) -> Result<Vec<(u32, Option<Bytes>)>, NvmlError> {
    let running = gpu.running_compute_processes()?.into_iter();
    let held = |process: ProcessInfo| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => (process.pid, Some(Bytes(bytes))),
        UsedGpuMemory::Unavailable => (process.pid, None),
    };
    Ok(running.map(held).collect())
}

/// The other processes that hold memory of the GPU with this CUDA number, in words, largest first; empty if the driver
/// does not report them.
#[must_use]
pub fn gpu_processes(number: usize) -> Vec<String> {
    let Ok(nvml) = nvml() else {
        return Vec::new();
    };
    let all = device(nvml, number).and_then(|gpu| processes(&gpu));
    let mut others = all.unwrap_or_default();
    others.retain(|&(pid, _)| pid != std::process::id());
    others.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let words = |(pid, bytes): (u32, Option<Bytes>)| {
        let name = nvml.sys_process_name(pid, 80);
        let name = name.unwrap_or_else(|_| "a process".into());
        match bytes {
            Some(bytes) => format!("{name} (process {pid}, {bytes})"),
            None => format!("{name} (process {pid})"),
        }
    };
    others.into_iter().map(words).collect()
}

/// The driver's release, `580.159.04`.
///
/// # Errors
///
/// Where the library is missing.
pub fn nvml_driver() -> Result<String, Unavailable> {
    Ok(nvml()?.sys_driver_version()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_meanwhile_is_not_ones_own() {
        let held = |all, own: Option<u64>| GpuHeld {
            all: Bytes(all),
            own: own.map(Bytes),
        };
        // Not listed before it has a context.
        let before = held(300, None);
        assert_eq!(before.taken_until(held(1300, Some(500))), Bytes(500));
        assert_eq!(before.taken_until(held(800, None)), Bytes(500));
        // It had one.
        let before = held(800, Some(500));
        assert_eq!(before.taken_until(held(1300, Some(500))), Bytes(0));
        assert_eq!(before.taken_until(held(700, None)), Bytes(0));
    }
}
