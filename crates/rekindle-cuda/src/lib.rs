//! CUDA on this machine: its location, whether it works, and its GPUs' memory.
//!
//! burn's CUDA backend opens the driver (`libcuda`) and the run-time compiler (NVRTC) when a device is first used,
//! reads headers from `CUDA_PATH` for every kernel, and panics if one of them is missing. This crate finds and tests
//! all three, and returns errors that say what to install.
//!
//! ```no_run
//! // First in `main`: the environment may only change while there is one thread.
//! rekindle_cuda::prepare();
//! for gpu in rekindle_cuda::gpus()? {
//!     rekindle_cuda::try_compiling(&gpu)?;
//!     let free = gpu.context()?.free()?;
//!     println!("{}: {free} of {} bytes free", gpu.name, gpu.total);
//! }
//! # Ok::<(), rekindle_cuda::CudaError>(())
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | `toolkit` | the location of headers and NVRTC: toolkits, conda, pip's wheels |
//! | `headers` | the headers that kernels need, and the packages that contain them |
//! | `compiler` | opens NVRTC |
//! | `driver` | the driver's GPUs and their memory |
//! | `trial` | a small tensor-core kernel, compiled and loaded |
//! | `error` | errors that say what is missing and how to install it |

#![deny(missing_docs)]

mod compiler;
mod driver;
mod error;
mod headers;
mod toolkit;
mod trial;

use std::fmt;

pub use compiler::{Nvrtc, nvrtc};
pub use driver::{Context, Gpu, driver_version, error_words, gpus};
pub use error::CudaError;
pub use headers::{Part, version as header_version};
pub use toolkit::{Toolkit, prepare, toolkit};
pub use trial::{parts, try_compiling};

/// A version of CUDA: of a driver, NVRTC or headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// `13` in 13.0.
    pub major: u32,
    /// `0` in 13.0.
    pub minor: u32,
}

impl Version {
    /// Converts NVIDIA's number: 13000 is 13.0.
    fn from_number(number: u32) -> Self {
        Self {
            major: number / 1000,
            minor: number % 1000 / 10,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
