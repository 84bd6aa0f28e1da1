//! One operation between two readings.

use std::time::Instant;

use super::reader::{MemoryReading, Meter};

/// Share by which temporary bytes are rounded up: threads do not all come to their highest point at once.
const SCRATCH_MARGIN: f64 = 1.0 / 16.0;

/// What one operation took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Interval {
    pub(crate) before: MemoryReading,
    pub(crate) after: MemoryReading,
    pub(crate) seconds: f64,
}

impl Interval {
    /// Runs an operation, which is to wait for what it queues.
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

    /// What more is in use afterwards.
    pub(crate) fn kept(&self) -> u64 {
        let after = self.after.in_use_bytes.0;
        after.saturating_sub(self.before.in_use_bytes.0)
    }

    /// How far this peak is above what was in use before and after.
    pub(crate) fn above(&self, peak: u64) -> u64 {
        peak.saturating_sub(self.after.in_use_bytes.max(self.before.in_use_bytes).0)
    }
}

/// Wakes the threads that CPU kernels run on. In a training step they are always awake and work side by side, each with
/// scratch of its own; an operation that comes after a pause may be over before the others join in.
fn wake_threads() {
    #[cfg(feature = "flex")]
    rayon::broadcast(|_| {});
}

/// Temporary bytes, and what threads may take more.
pub(crate) fn with_margin(temp: u64) -> u64 {
    temp + (temp as f64 * SCRATCH_MARGIN).ceil() as u64
}

/// 0 of none.
pub(crate) fn median(seconds: impl Iterator<Item = f64>) -> f64 {
    let mut seconds: Vec<f64> = seconds.collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}
