//! Other processes that hold memory of a GPU.

use std::fmt;

use rekindle_plan::Bytes;

/// A process that holds memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its process id.
    pub pid: u32,
    /// Its program, if the driver reports it.
    pub name: Option<String>,
    /// Its memory, context included, if the driver reports it.
    pub bytes: Option<Bytes>,
}

impl fmt::Display for GpuProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("a process");
        write!(f, "{name} (process {}", self.pid)?;
        if let Some(bytes) = self.bytes {
            write!(f, ", {bytes}")?;
        }
        f.write_str(")")
    }
}

/// Empty, because this build has no CUDA.
#[cfg(not(feature = "cuda"))]
#[must_use]
pub fn gpu_processes(_number: usize) -> Vec<GpuProcess> {
    Vec::new()
}
