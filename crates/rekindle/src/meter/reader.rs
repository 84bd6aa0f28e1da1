//! The meter trait and its readings.

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Reads a device's memory.
///
/// Peaks belong to an interval: from the last [`start_interval`](Self::start_interval) until now.
pub trait Meter: Send + Sync {
    /// Waits for queued work, then reads.
    fn read(&self) -> MemoryReading;

    /// Starts a new interval for the peaks.
    fn start_interval(&self);

    /// The highest peaks of all intervals since the meter was made (for a host meter: since the process started).
    fn lifetime_peak(&self) -> PeakMemory;

    /// Returns unused memory of the pools to the device, and says what is [held](Self::held) then. Waits for queued work.
    fn trim(&self) -> Bytes {
        self.held()
    }

    /// [Trims](Self::trim), or returns what the process's allocator keeps to the system: steps then take it anew.
    fn release(&self) {
        self.trim();
    }

    /// Device memory that the driver holds for this process besides the pools' buffers, after the last
    /// [clean-up](Self::trim): its context, loaded kernels, and what buffers in use are rounded up by.
    fn context_bytes(&self) -> Bytes {
        Bytes(0)
    }

    /// The unit that the driver rounds large allocations up to; zero if it rounds none.
    fn allocation_unit(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Device memory that this process holds now, the pools' and what the driver holds besides. Does not wait for the device.
    fn held(&self) -> Bytes {
        self.read().reserved_bytes.unwrap_or_default() + self.context_bytes()
    }

    /// The largest allowed buffer in bytes, if the device limits it separately from its memory.
    fn largest_buffer(&self) -> Option<Bytes> {
        None
    }

    /// Turns gathering of threads on or off. While on, threads that share a piece of work all hold the memory for their
    /// parts at the same time, so that the largest possible peak is measured. This takes longer. No effect where the
    /// work does not run on threads of the process.
    fn gather_threads(&self, _on: bool) {}

    /// Reserves address space for a failing allocation, if the process's allocator supports it: the allocation then
    /// succeeds, and [`failure`](Self::failure) reports it. Resets an earlier failure.
    fn keep_reserve(&self, _bytes: Bytes) {}

    /// The first allocation that failed since the last [`keep_reserve`](Self::keep_reserve).
    fn failure(&self) -> Option<FailedAllocation> {
        None
    }
}

/// An allocation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("could not allocate {asked} with {in_use} in use")]
pub struct FailedAllocation {
    /// Requested bytes.
    pub asked: Bytes,
    /// Bytes in use at that time.
    pub in_use: Bytes,
}

/// What a meter reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryReading {
    /// Bytes in live buffers at the end.
    pub in_use_bytes: Bytes,
    /// The most bytes in live buffers.
    pub peak_in_use_bytes: Bytes,
    /// Bytes that the pools had taken from the device at the end; `null` where buffers come straight from the system.
    pub reserved_bytes: Option<Bytes>,
    /// The most bytes that the pools had taken from the device; `null` where buffers come straight from the system.
    pub peak_reserved_bytes: Option<Bytes>,
}

impl MemoryReading {
    /// This reading, with the higher of its peaks and those of an earlier one.
    #[must_use]
    pub(crate) fn after(self, before: Self) -> Self {
        Self {
            peak_in_use_bytes: self.peak_in_use_bytes.max(before.peak_in_use_bytes),
            peak_reserved_bytes: self.peak_reserved_bytes.max(before.peak_reserved_bytes),
            ..self
        }
    }
}

/// The highest peaks over many intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PeakMemory {
    /// The most bytes in live buffers.
    pub in_use_bytes: Bytes,
    /// The most bytes taken from the device by the pools.
    pub reserved_bytes: Option<Bytes>,
    /// What the driver holds besides: its context, loaded kernels, and what it rounds allocations up by.
    pub context_bytes: Bytes,
}

impl PeakMemory {
    /// The peak by this way of counting; without pools, reserved bytes are those in use.
    #[must_use]
    pub fn counted(&self, count: Count) -> Bytes {
        match (count, self.reserved_bytes) {
            (Count::Reserved, Some(reserved)) => reserved + self.context_bytes,
            _ => self.in_use_bytes,
        }
    }
}

/// Which bytes a budget bounds. On the processor the two are one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Count {
    /// What the device loses: the pools' reserved bytes and the driver's context.
    #[default]
    Reserved,
    /// Live buffers.
    InUse,
}

/// The error if the counting allocator is not installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "host memory cannot be measured: the counting allocator is not installed \
     (put `#[global_allocator] static A: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;` \
     into the program)"
)]
pub struct NotInstalled;
