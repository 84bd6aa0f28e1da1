//! Who else holds memory of a GPU.

use std::fmt;

use rekindle_plan::Bytes;

/// A process that holds memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its number.
    pub pid: u32,
    /// Its program, where the driver may say so.
    pub name: Option<String>,
    /// What it holds, its context included, where the driver may say so.
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

/// None: this build has no CUDA.
#[cfg(not(feature = "cuda"))]
#[must_use]
pub fn gpu_processes(_number: usize) -> Vec<GpuProcess> {
    Vec::new()
}
