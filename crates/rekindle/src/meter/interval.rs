//! One operation between two readings.

use std::time::Instant;

use super::reader::{MemoryReading, Meter};

/// Margin added to temporary bytes: threads do not all reach their highest point at the same time.
const SCRATCH_MARGIN: f64 = 1.0 / 16.0;

/// Memory and time of one operation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Interval {
    pub(crate) before: MemoryReading,
    pub(crate) after: MemoryReading,
    pub(crate) seconds: f64,
}

impl Interval {
    /// Runs an operation, which must wait for the work that it queues.
    pub(crate) fn of<T>(meter: &dyn Meter, operation: impl FnOnce() -> T) -> (T, Self) {
        wake_threads();
        meter.start_interval();
        let before = meter.read();
        let started = Instant::now();
        let result = operation();
        let seconds = started.elapsed().as_secs_f64();
        let after = meter.read();
        let interval = Self {
            before,
            after,
            seconds,
        };
        (result, interval)
    }

    /// Bytes by which memory in use has increased afterwards.
    pub(crate) fn kept(&self) -> u64 {
        let after = self.after.in_use_bytes.0;
        after.saturating_sub(self.before.in_use_bytes.0)
    }

    /// How far this peak is above the bytes in use before and after.
    pub(crate) fn above(&self, peak: u64) -> u64 {
        peak.saturating_sub(self.after.in_use_bytes.max(self.before.in_use_bytes).0)
    }
}

/// Wakes the threads that CPU kernels run on. In a training step they are always awake and work in parallel, each with
/// its own scratch memory; an operation after a pause may finish before other threads join in.
fn wake_threads() {
    #[cfg(feature = "flex")]
    rayon::broadcast(|_| {});
}

/// Temporary bytes plus the margin for threads.
pub(crate) fn with_margin(temp: u64) -> u64 {
    temp + (temp as f64 * SCRATCH_MARGIN).ceil() as u64
}

/// The median; 0 if there are no values.
pub(crate) fn median(seconds: impl Iterator<Item = f64>) -> f64 {
    let mut seconds: Vec<f64> = seconds.collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}
