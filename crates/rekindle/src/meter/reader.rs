//! What reads memory, and what is read.

use std::fmt;

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    census::Census,
    phase::{Phase, PhaseChanges},
};

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

    /// Gives memory that the pools hold but nobody uses back to the device. Waits for queued work.
    fn trim(&self) {}

    /// What the driver's context took of the device when it was made.
    fn context_bytes(&self) -> Bytes {
        Bytes(0)
    }

    /// The most bytes that one buffer may have, where the device bounds that apart from its memory.
    fn largest_buffer(&self) -> Option<Bytes> {
        None
    }

    /// Whether pools serve every buffer by its exact size, so that what they take at most while an operation runs is
    /// what that operation needs at most.
    fn exact_sizes(&self) -> bool {
        false
    }

    /// Has threads that share a piece of work hold at the same time what they need for their parts, or no more: then the
    /// most that the work can take is seen. It takes longer. Nothing where no threads of the process do the work.
    fn gather_threads(&self, _on: bool) {}

    /// Starts (or stops) telling blocks apart by size, where that is possible and costs something.
    fn count_blocks(&self, _on: bool) {}

    /// Starts an interval for [`census`](Self::census).
    fn start_census(&self) {}

    /// Writes down the blocks that came and went in the interval, queued work done. Nothing where nothing is known of
    /// blocks.
    fn census(&self, _into: &mut Census) {}

    /// A phase of a step is over; `None`: what ran since the last phase is no phase's. A [`PhaseRecorder`](super::PhaseRecorder) says so, for
    /// [`Leftovers`](super::Leftovers) and [`take_changes`](Self::take_changes).
    fn end_phase(&self, _phase: Option<Phase>) {}

    /// What phases have changed since this was last asked; `None` where [`Leftovers`](super::Leftovers) tell more.
    fn take_changes(&self) -> Option<PhaseChanges> {
        None
    }

    /// Keeps address space for an allocation that fails, where the process's allocator can: the allocation then succeeds,
    /// and [`failure`](Self::failure) tells of it. What had failed is forgotten.
    fn keep_reserve(&self, _bytes: Bytes) {}

    /// The first allocation that failed since the reserve was kept.
    fn failure(&self) -> Option<FailedAllocation> {
        None
    }

    /// Notes the bytes in use now, where a peak can only be sampled, and tells what the pools have reserved. Does not wait
    /// for the device: it runs after every action.
    fn sample(&self) -> Bytes {
        Bytes::ZERO
    }
}

/// An allocation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAllocation {
    /// Bytes that it asked for.
    pub asked: Bytes,
    /// Bytes in use then.
    pub in_use: Bytes,
}

impl fmt::Display for FailedAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, in_use } = self;
        write!(f, "could not allocate {asked} with {in_use} in use")
    }
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

/// The highest peaks over many intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PeakMemory {
    /// The most bytes in live buffers.
    pub in_use_bytes: Bytes,
    /// The most bytes taken from the device by the pools.
    pub reserved_bytes: Option<Bytes>,
    /// What the driver's context took of the device.
    pub context_bytes: Bytes,
}

impl PeakMemory {
    /// What the device lost at the peak: reserved bytes and the driver's context where there are pools, else bytes in
    /// use.
    #[must_use]
    pub fn device_bytes(&self) -> Bytes {
        match self.reserved_bytes {
            Some(reserved) => reserved + self.context_bytes,
            None => self.in_use_bytes,
        }
    }

    /// What counts.
    #[must_use]
    pub fn counted(&self, count: Count) -> Bytes {
        match count {
            Count::Reserved => self.device_bytes(),
            Count::InUse => self.in_use_bytes,
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

/// The process's allocator does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "host memory cannot be measured: the counting allocator is not installed \
     (put `#[global_allocator] static A: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;` \
     into the program)"
)]
pub struct NotInstalled;
