//! Measures memory: bytes in use, bytes reserved, and their peaks.
//!
//! | meter | in use | peak in use | reserved |
//! |---|---|---|---|
//! | [`HostMeter`] | the process's allocator, exact | exact | none |
//! | [`PoolMeter`] | live buffers of cubecl's pools | highest of the samples taken between actions | bytes the pools took from the device; where buffers are served by exact sizes, they only shrink in a clean-up, so its peak is exact |
//!
//! What the driver and NVML say of a whole GPU is in `rekindle-train/src/device` (`nvidia.rs`, `nvml.rs`).

mod host;
mod phase;
pub(crate) mod pool;
mod reader;
pub(crate) mod recorder;

pub use host::HostMeter;
pub use phase::Phase;
pub use pool::PoolMeter;
pub use reader::{Count, FailedAllocation, MemoryReading, Meter, NotInstalled, PeakMemory};
pub use recorder::PhaseReading;
pub(crate) use recorder::PhaseRecorder;
