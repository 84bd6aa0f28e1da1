//! NVIDIA GPUs, with the driver's numbers and figures. A GPU is usable if a small kernel compiles and loads.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use rekindle_cuda::{
    CudaError, Gpu, Toolkit, driver_version, gpus, header_version, nvrtc, parts, toolkit,
};
use rekindle_plan::Bytes;

use super::nvml::{GpuHeld, nvml_driver, nvml_memory};
use super::{DeviceId, DeviceInfo, Unavailable};

/// All GPUs that this process may use. One that cannot be used has a [problem](DeviceInfo::problem).
pub(super) fn all() -> Result<Vec<DeviceInfo>, Unavailable> {
    let gpus = gpus()?;
    let info = |gpu| match opened_free(gpu) {
        Ok(free) => info(gpu, Some(free)),
        Err(problem) => DeviceInfo {
            problem: Some(problem),
            ..info(gpu, None)
        },
    };
    Ok(gpus.iter().map(info).collect())
}

/// A GPU that works: a kernel has been compiled and loaded.
pub(super) fn opened(number: usize) -> Result<DeviceInfo, Unavailable> {
    let gpu = gpu(number)?;
    Ok(info(&gpu, Some(opened_free(&gpu)?)))
}

/// A GPU as the driver and NVML list it, without a context on it.
pub(super) fn listed(number: usize) -> Result<DeviceInfo, Unavailable> {
    let gpu = gpu(number)?;
    Ok(info(&gpu, Some(listed_free(&gpu)?)))
}

fn gpu(number: usize) -> Result<Gpu, Unavailable> {
    let gpus = gpus()?;
    let count = gpus.len();
    let gpu = gpus.into_iter().nth(number);
    gpu.ok_or_else(|| Unavailable::no_such_number(DeviceId::Cuda(number), count))
}

fn info(gpu: &Gpu, free_bytes: Option<Bytes>) -> DeviceInfo {
    let (major, minor) = (gpu.compute / 10, gpu.compute % 10);
    DeviceInfo {
        device: DeviceId::Cuda(gpu.number),
        name: gpu.name.clone(),
        total_bytes: Some(Bytes(gpu.total)),
        free_bytes,
        detail: format!("compute {major}.{minor}, PCI {}", gpu.pci),
        toolchain: format!(
            "compute {major}.{minor} driver {} nvrtc {}",
            nvml_driver().unwrap_or_default(),
            nvrtc().map_or_else(|_| String::new(), |nvrtc| nvrtc.version.to_string())
        ),
        ..DeviceInfo::default()
    }
}

/// Memory that no process holds. NVML reports a whole card, of which a MIG instance is a part.
fn listed_free(gpu: &Gpu) -> Result<Bytes, Unavailable> {
    parts()?;
    Ok(Bytes(nvml_memory(gpu.number)?.free.min(gpu.total)))
}

/// Memory available to this process, its context included.
fn opened_free(gpu: &Gpu) -> Result<Bytes, Unavailable> {
    let before = GpuHeld::now(gpu.number)?;
    let context = gpu.context()?;
    let taken = before.taken_until(GpuHeld::now(gpu.number)?);
    note_context(gpu.number, taken);
    rekindle_cuda::try_compiling(gpu)?;
    Ok(Bytes(context.free()?) + taken)
}

/// `cuMemAlloc` rounds allocations of this size and more up to multiples of it, and serves smaller ones from blocks of it.
pub(super) const ALLOCATION_UNIT: u64 = 2 << 20;

/// Memory that this process's context took on each GPU when it was created.
static CONTEXTS: Mutex<BTreeMap<usize, Bytes>> = Mutex::new(BTreeMap::new());

/// Records the memory taken by creating a context on a GPU (zero if the process already had one). Returns the context's
/// memory.
pub(super) fn note_context(number: usize, taken: Bytes) -> Bytes {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let context = contexts.entry(number).or_default();
    *context = taken.max(*context);
    *context
}

/// The components of CUDA on this machine, each with what was found or why it was not found.
pub fn cuda_parts() -> [(&'static str, Result<String, String>); 3] {
    let said = |error: CudaError| error.to_string();
    let driver = driver_version().map_err(said);
    let driver = driver.and_then(|cuda| {
        let release = nvml_driver().map_err(|error| error.to_string())?;
        Ok(format!("{release}, CUDA {cuda}"))
    });
    let compiler = nvrtc().map_err(said);
    let compiler = compiler.map(|nvrtc| match nvrtc.path {
        Some(path) => format!("{}, {}", nvrtc.version, path.display()),
        None => nvrtc.version.to_string(),
    });
    let headers = toolkit()
        .map(headers)
        .ok_or_else(|| "none found".to_owned());
    [
        ("driver", driver),
        ("nvrtc", compiler),
        ("headers", headers),
    ]
}

fn headers(toolkit: &Toolkit) -> String {
    let include = toolkit.home.join("include");
    match header_version(&include) {
        Some(version) => format!("{version}, {}", include.display()),
        None => include.display().to_string(),
    }
}
