//! The process's own allocator as a meter.

use rekindle_plan::Bytes;

use super::reader::{FailedAllocation, MemoryReading, Meter, NotInstalled, PeakMemory};

/// Exact bytes of the whole process, from its counting allocator.
///
/// All allocations of the process are counted, not only tensors: data sets, progress bars, and tests that run at the
/// same time.
#[derive(Debug, Clone, Copy)]
pub struct HostMeter(());

impl HostMeter {
    /// Returns a meter if [`rekindle_alloc::CountingAllocator`] is the process's allocator.
    ///
    /// # Errors
    ///
    /// [`NotInstalled`] otherwise: all readings would be zero.
    pub fn new() -> Result<Self, NotInstalled> {
        if rekindle_alloc::installed() {
            Ok(Self(()))
        } else {
            Err(NotInstalled)
        }
    }
}

impl Meter for HostMeter {
    fn read(&self) -> MemoryReading {
        MemoryReading {
            in_use_bytes: bytes(rekindle_alloc::in_use()),
            peak_in_use_bytes: bytes(rekindle_alloc::peak()),
            reserved_bytes: None,
            peak_reserved_bytes: None,
        }
    }

    fn lifetime_peak(&self) -> PeakMemory {
        PeakMemory {
            in_use_bytes: bytes(rekindle_alloc::lifetime_peak()),
            reserved_bytes: None,
            context_bytes: Bytes(0),
        }
    }

    fn start_interval(&self) {
        rekindle_alloc::reset_peak();
    }

    fn release(&self) {
        rekindle_alloc::trim();
    }

    fn keep_reserve(&self, reserve: Bytes) {
        // If the reserve cannot be kept, a failed allocation ends the process, as it does without Rekindle.
        rekindle_alloc::keep_reserve(usize::try_from(reserve.0).unwrap_or(usize::MAX));
    }

    fn failure(&self) -> Option<FailedAllocation> {
        let failure = rekindle_alloc::failure()?;
        Some(FailedAllocation {
            asked: bytes(failure.asked),
            in_use: bytes(failure.in_use),
        })
    }

    fn gather_threads(&self, on: bool) {
        rekindle_alloc::gather_threads(on);
    }
}

fn bytes(count: usize) -> Bytes {
    Bytes(count as u64)
}
