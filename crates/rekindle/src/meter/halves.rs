//! Two readers of one meter.
//!
//! A meter has one interval for its peaks. A step that is recorded by phase and by action needs two that overlap: a
//! reader that starts a new interval passes the peaks so far to the other reader.

use std::sync::{Arc, Mutex, PoisonError};

use rekindle_plan::Bytes;

use super::{FailedAllocation, MemoryReading, Meter, PeakMemory};

/// One of two readers, each with its own interval.
pub(crate) struct Half {
    meter: Arc<dyn Meter>,
    /// The peaks of each reader's interval from before the meter's own interval began.
    seen: Arc<Mutex<[MemoryReading; 2]>>,
    own: usize,
}

/// Two readers of `meter`. Nothing else may start intervals of the meter while they are used.
pub(crate) fn halves(meter: &Arc<dyn Meter>) -> [Half; 2] {
    let seen = Arc::default();
    [0, 1].map(|own| Half {
        meter: Arc::clone(meter),
        seen: Arc::clone(&seen),
        own,
    })
}

impl Meter for Half {
    fn read(&self) -> MemoryReading {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        higher(self.meter.read(), seen[self.own])
    }

    fn start_interval(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let other = 1 - self.own;
        seen[other] = higher(self.meter.read(), seen[other]);
        seen[self.own] = MemoryReading::default();
        self.meter.start_interval();
    }

    fn lifetime_peak(&self) -> PeakMemory {
        self.meter.lifetime_peak()
    }

    fn trim(&self) {
        self.meter.trim();
    }

    fn context_bytes(&self) -> Bytes {
        self.meter.context_bytes()
    }

    fn exact_sizes(&self) -> bool {
        self.meter.exact_sizes()
    }

    fn failure(&self) -> Option<FailedAllocation> {
        self.meter.failure()
    }

    fn sample(&self) -> Bytes {
        self.meter.sample()
    }
}

/// The reading with the higher of both peaks.
fn higher(now: MemoryReading, before: MemoryReading) -> MemoryReading {
    MemoryReading {
        peak_in_use_bytes: now.peak_in_use_bytes.max(before.peak_in_use_bytes),
        peak_reserved_bytes: now.peak_reserved_bytes.max(before.peak_reserved_bytes),
        ..now
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    /// Bytes are set by hand.
    #[derive(Default)]
    struct Hand {
        now: AtomicU64,
        peak: AtomicU64,
    }

    impl Hand {
        fn holds(&self, bytes: u64) {
            self.now.store(bytes, Relaxed);
            self.peak.fetch_max(bytes, Relaxed);
        }
    }

    impl Meter for Hand {
        fn read(&self) -> MemoryReading {
            MemoryReading {
                in_use_bytes: Bytes(self.now.load(Relaxed)),
                peak_in_use_bytes: Bytes(self.peak.load(Relaxed)),
                ..MemoryReading::default()
            }
        }

        fn start_interval(&self) {
            self.peak.store(self.now.load(Relaxed), Relaxed);
        }

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }
    }

    #[test]
    fn each_reader_has_the_peak_of_its_own_interval() {
        let hand = Arc::new(Hand::default());
        let meter: Arc<dyn Meter> = hand.clone();
        let [phase, action] = halves(&meter);
        phase.start_interval();
        action.start_interval();
        let mut peaks = Vec::new();
        for (peak, after) in [(5, 2), (9, 3), (4, 1)] {
            hand.holds(peak);
            hand.holds(after);
            peaks.push(action.read().peak_in_use_bytes.0);
            action.start_interval();
        }
        assert_eq!(peaks, [5, 9, 4]);
        assert_eq!(phase.read().peak_in_use_bytes, Bytes(9));
        assert_eq!(phase.read().in_use_bytes, Bytes(1));

        phase.start_interval();
        hand.holds(6);
        assert_eq!(phase.read().peak_in_use_bytes, Bytes(6));
        assert_eq!(action.read().peak_in_use_bytes, Bytes(6));
    }
}
