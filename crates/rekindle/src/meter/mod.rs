//! Measures memory: bytes in use, bytes reserved, and their peaks.
//!
//! | meter | in use | peak in use | reserved |
//! |---|---|---|---|
//! | [`HostMeter`] | the process's allocator, exact | exact | not measured separately |
//! | [`PoolMeter`] | live buffers of cubecl's pools | highest of the samples taken between actions | bytes that the pools have taken from the device; if buffers are served by exact sizes, these shrink only in a clean-up, so the peak is exact |

mod census;
mod halves;
mod host;
mod interval;
mod leftovers;
mod phase;
mod pool;
mod reader;
mod recorder;

pub use census::{Census, Change};
pub(crate) use halves::halves;
pub use host::HostMeter;
pub(crate) use interval::{Interval, median, with_margin};
pub use leftovers::{Leftover, Leftovers};
pub use phase::{Phase, PhaseChanges};
pub use pool::PoolMeter;
pub use reader::{Count, FailedAllocation, MemoryReading, Meter, NotInstalled, PeakMemory};
pub use recorder::{PhaseReading, PhaseRecorder};
