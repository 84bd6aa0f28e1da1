//! Opens NVRTC: the same library that the CUDA backend uses for compiling.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use cudarc::nvrtc::sys;
use libloading::Library;

use crate::{CudaError, Version, driver_version, toolkit, toolkit::newest};

/// NVIDIA's run-time compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvrtc {
    /// Its version of CUDA.
    pub version: Version,
    /// Its file.
    pub path: Option<PathBuf>,
}

/// Opens NVRTC: the toolkit's own, else the one that the system's loader finds.
///
/// # Errors
///
/// If there is none.
pub fn nvrtc() -> Result<Nvrtc, CudaError> {
    static OPENED: OnceLock<Option<Nvrtc>> = OnceLock::new();
    match OPENED.get_or_init(opened) {
        Some(nvrtc) => Ok(nvrtc.clone()),
        None => Err(CudaError::NoNvrtc(driver_version()?)),
    }
}

fn opened() -> Option<Nvrtc> {
    if let Some(folder) = toolkit().and_then(|toolkit| toolkit.libraries.as_deref()) {
        // The backend opens NVRTC by name only, and NVRTC opens its built-in functions the same way: libraries that are
        // already open are found.
        preload(folder, "libnvrtc-builtins.so");
        preload(folder, "libnvrtc.so");
    }
    // SAFETY: NVRTC's initializers have no conditions.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes two integers.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    Some(Nvrtc {
        version: Version {
            major: major.unsigned_abs(),
            minor: minor.unsigned_abs(),
        },
        path: path(),
    })
}

/// Opens the newest library with this name in a folder, permanently.
fn preload(folder: &Path, name: &str) {
    if let Some(path) = newest(folder, name) {
        // SAFETY: a library of CUDA's, whose initializers have no conditions.
        let library = unsafe { Library::new(&path) };
        std::mem::forget(library);
    }
}

/// The file of the backend's NVRTC.
#[cfg(unix)]
fn path() -> Option<PathBuf> {
    use std::{
        ffi::{CStr, OsStr},
        os::unix::ffi::OsStrExt,
    };

    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the symbol is only used as an address; `dladdr` fills `info` with strings that live as long as the library,
    // which is never closed.
    unsafe {
        let symbol = sys::culib()
            .get::<*const libc::c_void>(b"nvrtcVersion\0")
            .ok()?;
        let address: *const libc::c_void = *symbol;
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let path = CStr::from_ptr(info.dli_fname);
        Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
    }
}

#[cfg(not(unix))]
fn path() -> Option<PathBuf> {
    None
}
