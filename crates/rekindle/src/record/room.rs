//! Keeps a device's memory within a budget: the reserved bytes of its pools, and what the driver holds besides.
//!
//! A GPU's pools keep freed buffers, and a free buffer of one size cannot serve a request of another size. So they may
//! reserve more than a program ever uses at one time. The maximum memory of each operation is known in advance: if the
//! pools might exceed the budget, they are trimmed first. Then they reserve no more than the bytes in use plus the
//! overhead of pools, which plans count. So a program whose simulated peak is within the budget never reserves more
//! than the budget.
//!
//! Reading the pools runs the operations that fusion has deferred, so it is postponed as long as the last reading plus
//! the maximum memory of all operations since then is within the budget. Reading does not wait for the device: pools
//! count a buffer when the operation is issued.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use rekindle_plan::Bytes;

use crate::meter::Meter;

/// Keeps a device's memory within a budget.
pub(super) struct Room {
    meter: Arc<dyn Meter>,
    /// [`Bytes::MAX`] if nothing bounds the pools.
    budget: Bytes,
    /// Upper bound on the bytes held so far.
    bound: Mutex<u64>,
    trims: AtomicU64,
}

impl Room {
    /// Keeps what is held within `budget` bytes.
    pub(super) fn new(meter: Arc<dyn Meter>, budget: Bytes) -> Self {
        Self {
            meter,
            budget,
            bound: Mutex::new(u64::MAX),
            trims: AtomicU64::new(0),
        }
    }

    /// Number of times the pools were trimmed.
    pub(super) fn trims(&self) -> u64 {
        self.trims.load(Relaxed)
    }

    /// Makes room for buffers of `need` bytes. Call this immediately before they are allocated.
    pub(super) fn make(&self, need: Bytes) {
        if self.budget == Bytes::MAX {
            return;
        }
        // What an operation takes is one buffer more often than not, and a temporary one.
        let unit = self.meter.allocation_unit();
        let need = need + Bytes(unit.0 * u64::from(need >= unit));
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if bound.saturating_add(need.0) > self.budget.0 {
            *bound = self.meter.held().0;
            if bound.saturating_add(need.0) > self.budget.0 {
                *bound = self.meter.trim().0;
                self.trims.fetch_add(1, Relaxed);
            }
        }
        *bound = bound.saturating_add(need.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::meter::{MemoryReading, PeakMemory};

    /// Pools that reserve 60 bytes, 20 of them in use, and count how often they are read.
    #[derive(Default)]
    struct Pools {
        trimmed: AtomicBool,
        reads: AtomicU64,
    }

    impl Meter for Pools {
        fn read(&self) -> MemoryReading {
            unreachable!("it waits for the device");
        }

        fn held(&self) -> Bytes {
            self.reads.fetch_add(1, Relaxed);
            Bytes(if self.trimmed.load(Relaxed) { 20 } else { 60 })
        }

        fn start_interval(&self) {}

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }

        fn trim(&self) -> Bytes {
            self.trimmed.store(true, Relaxed);
            self.held()
        }
    }

    #[test]
    fn pools_are_read_only_where_they_might_have_grown_past_the_budget_and_trimmed_only_where_they_have()
     {
        let pools = Arc::new(Pools::default());
        let meter: Arc<dyn Meter> = pools.clone();
        let room = Room::new(meter, Bytes(100));
        let forward = Bytes(15);
        // The first reading shows 60; 75 and 90 bytes at most after the first and the second forward.
        room.make(forward);
        room.make(forward);
        assert_eq!((pools.reads.load(Relaxed), room.trims()), (1, 0));
        // 105 at most: a reading shows 60 again.
        room.make(forward);
        assert_eq!((pools.reads.load(Relaxed), room.trims()), (2, 0));

        let room = Room::new(pools.clone(), Bytes(70));
        room.make(forward);
        assert_eq!((pools.reads.load(Relaxed), room.trims()), (4, 1));
    }
}
