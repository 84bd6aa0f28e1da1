//! The driver's GPUs and their memory.

use std::{ffi::CStr, path::Path, sync::Arc};

use cudarc::driver::{
    CudaContext, DriverError,
    result::{self, device},
    sys::{self, CUdevice_attribute as Attribute},
};

use crate::{CudaError, Version};

/// A GPU, with the driver's number and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's number, which depends on `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.
    pub number: usize,
    /// The product name.
    pub name: String,
    /// Its address on the PCI bus, `0000:10:00.0`.
    pub pci: String,
    /// Compute capability: 90 is 9.0.
    pub compute: u32,
    /// Total memory, in bytes.
    pub total: u64,
}

/// The newest CUDA version that the driver supports.
///
/// # Errors
///
/// If there is no driver.
pub fn driver_version() -> Result<Version, CudaError> {
    initialized()?;
    let mut number = 0;
    // SAFETY: the driver writes one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut number) }
        .result()
        .map_err(|error| failed("cuDriverGetVersion", error))?;
    Ok(Version::from_number(number.unsigned_abs()))
}

/// The GPUs that this process may use, in CUDA's order.
///
/// # Errors
///
/// If there is no driver, it fails, or it lists no GPU.
pub fn gpus() -> Result<Vec<Gpu>, CudaError> {
    initialized()?;
    let count = device::get_count().map_err(|error| failed("cuDeviceGetCount", error))?;
    if count == 0 {
        return Err(no_gpu());
    }
    (0..count)
        .map(|number| Gpu::read(number).map_err(|error| failed("cuDeviceGetAttribute", error)))
        .collect()
}

impl Gpu {
    fn read(number: i32) -> Result<Self, DriverError> {
        let gpu = device::get(number)?;
        let mut pci = [0; 32];
        // SAFETY: `gpu` comes from the driver, which writes at most the length that it is given.
        let (major, minor, total) = unsafe {
            sys::cuDeviceGetPCIBusId(pci.as_mut_ptr().cast(), pci.len() as i32, gpu).result()?;
            (
                device::get_attribute(
                    gpu,
                    Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                )?,
                device::get_attribute(
                    gpu,
                    Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                )?,
                device::total_mem(gpu)?,
            )
        };
        let pci = CStr::from_bytes_until_nul(&pci).map(CStr::to_string_lossy);
        Ok(Self {
            number: number as usize,
            name: device::get_name(gpu)?,
            pci: pci.map(String::from).unwrap_or_default(),
            compute: (major * 10 + minor).unsigned_abs(),
            total: total as u64,
        })
    }

    /// The process's context on the GPU. A new context takes several hundred MB of the GPU while it exists.
    ///
    /// # Errors
    ///
    /// If another process uses the GPU in exclusive mode, or there is no memory for a context.
    pub fn context(&self) -> Result<Context, CudaError> {
        CudaContext::new(self.number)
            .map(Context)
            .map_err(|error| match error.0 {
                sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => CudaError::Taken(self.number),
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::NoMemory(self.number),
                _ => failed("cuDevicePrimaryCtxRetain", error),
            })
    }
}

/// A process's context on a GPU. The driver frees it when the last holder drops it; the CUDA backend is also a holder.
pub struct Context(Arc<CudaContext>);

impl Context {
    /// Bytes of the GPU's memory that are still available to this process.
    ///
    /// # Errors
    ///
    /// If the driver call fails.
    pub fn free(&self) -> Result<u64, CudaError> {
        let info = self.0.mem_get_info();
        let (free, _) = info.map_err(|error| failed("cuMemGetInfo", error))?;
        Ok(free as u64)
    }
}

/// The driver's library, opened and initialized.
fn initialized() -> Result<(), CudaError> {
    // SAFETY: opening the driver's library runs its initializers, as the CUDA backend does too.
    if !unsafe { sys::is_culib_present() } {
        let module = Path::new("/proc/driver/nvidia/version").exists();
        return Err(CudaError::NoDriver { module });
    }
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => no_gpu(),
        sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => CudaError::DriverMismatch,
        _ => failed("cuInit", error),
    })
}

fn no_gpu() -> CudaError {
    let hidden = std::env::var_os("CUDA_VISIBLE_DEVICES");
    CudaError::NoGpu {
        hidden: hidden.map(|value| value.to_string_lossy().into_owned()),
    }
}

/// A driver error without its own variant.
pub(crate) fn failed(call: &'static str, error: DriverError) -> CudaError {
    let words = error.error_string().map(CStr::to_string_lossy);
    CudaError::Driver {
        call,
        name: format!("{:?}", error.0),
        words: words.unwrap_or_default().into_owned(),
    }
}

/// Errors after which a GPU is unusable for the process.
const FAULTS: [sys::CUresult; 12] = [
    sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    sys::CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    sys::CUresult::CUDA_ERROR_ASSERT,
    sys::CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    sys::CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    sys::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    sys::CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    sys::CUresult::CUDA_ERROR_INVALID_PC,
    sys::CUresult::CUDA_ERROR_LAUNCH_FAILED,
];

/// CUDA's name and the driver's description of an error number, if there is a driver and the error is a device fault.
#[must_use]
pub fn error_words(code: u32) -> Option<(String, String)> {
    let error = FAULTS.into_iter().find(|&error| error as u32 == code)?;
    // SAFETY: see `initialized`.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let words = DriverError(error);
    let words = words.error_string().map(CStr::to_string_lossy);
    Some((format!("{error:?}"), words.unwrap_or_default().into_owned()))
}
