//! Errors that say what is missing and how to install it.

use std::path::PathBuf;

use thiserror::Error;

use crate::{Part, Version, headers::install};

/// The error when CUDA cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CudaError {
    /// There is no driver library.
    #[error("{}", no_driver(*.module))]
    NoDriver {
        /// Whether the kernel module is loaded: then only this system (for example, a container) lacks the library.
        module: bool,
    },
    /// The driver lists no GPU.
    #[error("{}", no_gpu(.hidden.as_deref()))]
    NoGpu {
        /// The value of `CUDA_VISIBLE_DEVICES`, if set.
        hidden: Option<String>,
    },
    /// The driver's library and the kernel's module are of different versions.
    #[error(
        "the NVIDIA driver's library and kernel module differ in version (CUDA error 803): restart the machine after \
         an update of the driver; in a container, use the host's driver library"
    )]
    DriverMismatch,
    /// Another process uses the GPU of this number in exclusive mode.
    #[error(
        "GPU {0} is in use by another process in exclusive mode (CUDA error 46): end that process, or have an \
         administrator run `nvidia-smi -i {0} -c DEFAULT`"
    )]
    Taken(usize),
    /// There is not enough memory for a context on the GPU of this number.
    #[error("GPU {0} is out of memory: not even a context fits beside what other processes hold")]
    NoMemory(usize),
    /// Another error of the driver.
    #[error("the NVIDIA driver refused `{call}`: {name} ({words})")]
    Driver {
        /// The driver call.
        call: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// The driver's description.
        words: String,
    },
    /// There is no run-time compiler for the driver's version of CUDA.
    #[error(
        "NVRTC, which compiles kernels, is missing (`libnvrtc.so`): {}",
        install(&[Part::Nvrtc], *.0)
    )]
    NoNvrtc(Version),
    /// There are no headers at all, of this version or another that works.
    #[error(
        "the CUDA headers, which kernels are compiled with, are missing: {}, or set CUDA_PATH to the folder of a toolkit",
        install(&Part::HEADERS, *.0)
    )]
    NoToolkit(Version),
    /// Some headers are missing.
    #[error("headers are missing in {}: {}", .include.display(), install(.missing, *.version))]
    NoHeaders {
        /// The folder in which they are searched.
        include: PathBuf,
        /// The missing parts.
        missing: Vec<Part>,
        /// A version that works.
        version: Version,
    },
    /// Headers exist in this toolkit, but the environment does not name it.
    #[error(
        "the CUDA headers are in {}, which the CUDA backend does not know: set CUDA_PATH to {} before the program \
         starts, or call `rekindle_cuda::prepare()` first in `main`",
        .0.join("include").display(), .0.display()
    )]
    NotPrepared(PathBuf),
    /// A small kernel does not compile.
    #[error(
        "NVRTC {nvrtc} does not compile a small kernel with the headers of {}: {log}",
        .home.display()
    )]
    DoesNotCompile {
        /// NVRTC's version.
        nvrtc: Version,
        /// The toolkit's folder.
        home: PathBuf,
        /// The compiler's first error.
        log: String,
    },
    /// The driver is older than the compiler.
    #[error(
        "NVRTC {nvrtc} is newer than the driver, which knows CUDA {driver} and does not load its kernels: update the \
         driver, or {}",
        install(&[Part::Nvrtc], *.driver)
    )]
    NvrtcTooNew {
        /// NVRTC's version.
        nvrtc: Version,
        /// The driver's.
        driver: Version,
    },
}

impl CudaError {
    /// Whether this machine is not set up for CUDA: there is no driver at all.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver { module: false })
    }
}

fn no_driver(module: bool) -> &'static str {
    match module {
        true => {
            "the NVIDIA kernel module is loaded, but its library `libcuda.so.1` is missing: in a container, start it with \
             the NVIDIA Container Toolkit (`--gpus all`); else install the driver's library of the same version"
        }
        false => "no NVIDIA driver is installed (`libcuda.so.1` is missing)",
    }
}

fn no_gpu(hidden: Option<&str>) -> String {
    match hidden {
        Some(value) => format!(
            "the NVIDIA driver lists no GPU: CUDA_VISIBLE_DEVICES is `{value}`, which may hide all; unset it"
        ),
        None => "the NVIDIA driver lists no GPU: `nvidia-smi -L` says what it sees".to_owned(),
    }
}
