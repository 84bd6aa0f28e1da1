//! The devices that a run can be on.
//!
//! | file | what it owns |
//! |---|---|
//! | `probe.rs`, `info.rs` | asks a device; what it answers, or why it cannot be used |
//! | `open.rs` | burn's device and its meter |
//! | `nvidia.rs`, `nvml.rs` | NVIDIA's GPUs by driver and NVML: memory, and which processes hold it |
//! | `control_group.rs` | limits of this process's memory |
//! | `kernels.rs` | compiled kernels and autotune's choices, kept between runs |
//! | `fault.rs` | what a device's error messages mean |
//! | `staging.rs` | parameters on their way to a GPU |

mod control_group;
mod fault;
mod info;
mod kernels;
#[cfg(feature = "cuda")]
mod nvidia;
#[cfg(feature = "cuda")]
mod nvml;
mod open;
mod probe;
pub(crate) mod staging;

use std::fmt;

use serde::{Serialize, Serializer};

pub use fault::{device_fault, innermost_cause, refused_kernel, tile_too_large};
pub use info::{DeviceInfo, Obstacle, Unavailable};
pub use kernels::{keep_kernels, kept_kernels, seal_kernels};
#[cfg(feature = "cuda")]
pub use nvidia::cuda_parts;
#[cfg(feature = "cuda")]
pub use nvml::gpu_processes;
#[cfg(feature = "cuda")]
pub(crate) use nvml::nvml_memory;
pub use open::{OpenDevice, open};
pub use probe::{address_space_left, count, listed, probe, probe_kind};
pub(crate) use probe::{memory, resident, resident_peak};

/// Makes CUDA available where the backend looks for it, if this build has CUDA. Call this first in `main`: the
/// environment may only be changed while the process has a single thread.
pub fn prepare() {
    #[cfg(feature = "cuda")]
    rekindle_cuda::prepare();
}

/// The components of CUDA; none are found if this build has no CUDA.
#[cfg(not(feature = "cuda"))]
pub fn cuda_parts() -> [(&'static str, Result<String, String>); 3] {
    let none = |part| (part, Err("not built in".to_owned()));
    ["driver", "nvrtc", "headers"].map(none)
}

/// The other processes that hold memory of a GPU; none, because this build has no CUDA.
#[cfg(not(feature = "cuda"))]
#[must_use]
pub fn gpu_processes(_number: usize) -> Vec<String> {
    Vec::new()
}

/// One specific device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum DeviceId {
    /// The processor, by burn's `flex` backend.
    #[default]
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
    /// The wgpu adapter of this number; 0 is wgpu's own choice.
    Wgpu(usize),
}

impl DeviceId {
    /// The cargo feature that builds the device's backend in.
    #[must_use]
    pub fn feature(self) -> &'static str {
        match self {
            Self::Cpu => "flex",
            Self::Cuda(_) => "cuda",
            Self::Wgpu(_) => "wgpu",
        }
    }
}

/// Serializes as the user would type it.
impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Wgpu(index) => write!(f, "wgpu:{index}"),
        }
    }
}
