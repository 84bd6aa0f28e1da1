//! A device's memory pools as a meter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::{Device, MemoryPoolUsage};
use rekindle_plan::Bytes;

use super::{MemoryReading, Meter, PeakMemory};
use crate::device_errors;

/// In use and reserved bytes of a device's pools, over all its streams.
///
/// Every reading, also one [between actions](Meter::sample), first runs the operations that fusion has deferred,
/// because their buffers are not allocated before.
pub struct PoolMeter {
    device: Device,
    exact_sizes: bool,
    context: Bytes,
    peak_in_use: AtomicU64,
    peak_reserved: AtomicU64,
    lifetime_in_use: AtomicU64,
    lifetime_reserved: AtomicU64,
}

impl PoolMeter {
    /// A meter for `device`, which must be usable and have pools; other devices may panic. Applies the pools' settings
    /// first if no device has been used yet.
    #[must_use]
    pub fn new(device: Device) -> Self {
        #[cfg(feature = "cubecl")]
        let exact_sizes = crate::cubecl::set_up().exact_sizes();
        #[cfg(not(feature = "cubecl"))]
        let exact_sizes = false;
        Self {
            device,
            exact_sizes,
            context: Bytes(0),
            peak_in_use: AtomicU64::new(0),
            peak_reserved: AtomicU64::new(0),
            lifetime_in_use: AtomicU64::new(0),
            lifetime_reserved: AtomicU64::new(0),
        }
    }

    /// A meter for `device`, if it has pools.
    #[must_use]
    pub fn of(device: &Device) -> Option<Self> {
        let meter = Self::new(device.clone());
        meter.now()?;
        Some(meter)
    }

    /// Also counts the memory of the driver's context.
    #[must_use]
    pub fn with_context(self, context: Bytes) -> Self {
        Self { context, ..self }
    }

    /// The pools' usage; `None` if the device has failed: the failed operation reports the error.
    fn now(&self) -> Option<MemoryPoolUsage> {
        let usage = self.device.memory_pool_usage()?;
        #[cfg(feature = "cubecl")]
        if cubecl_runtime::dry_run::dry_run() {
            // In a dry run no kernel runs on the buffers, so they take no device memory and do not count towards peaks.
            return Some(usage);
        }
        self.peak_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.peak_reserved.fetch_max(usage.bytes_reserved, Relaxed);
        self.lifetime_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.lifetime_reserved
            .fetch_max(usage.bytes_reserved, Relaxed);
        Some(usage)
    }

    /// Waits for queued work. Errors are ignored here: the failed operation reports them.
    fn wait(&self) {
        let _ = self.device.sync();
    }
}

impl Meter for PoolMeter {
    fn read(&self) -> MemoryReading {
        self.wait();
        let (in_use, reserved) = self
            .now()
            .map_or((0, 0), |usage| (usage.bytes_in_use, usage.bytes_reserved));
        MemoryReading {
            in_use_bytes: Bytes(in_use),
            peak_in_use_bytes: Bytes(self.peak_in_use.load(Relaxed)),
            reserved_bytes: Some(Bytes(reserved)),
            peak_reserved_bytes: Some(Bytes(self.peak_reserved.load(Relaxed))),
        }
    }

    fn lifetime_peak(&self) -> PeakMemory {
        PeakMemory {
            in_use_bytes: Bytes(self.lifetime_in_use.load(Relaxed)),
            reserved_bytes: Some(Bytes(self.lifetime_reserved.load(Relaxed))),
            context_bytes: self.context,
        }
    }

    fn context_bytes(&self) -> Bytes {
        self.context
    }

    fn trim(&self) {
        // Take a reading before the clean-up, for the peak of the reserved bytes, and to run the operations that fusion
        // has deferred: they hold buffers.
        self.now();
        self.device.memory_cleanup();
        // The pools have released their free buffers, but the device frees them only when its queued work is done.
        self.wait();
        self.now();
    }

    fn largest_buffer(&self) -> Option<Bytes> {
        device_errors::largest_buffer(&self.device)
    }

    fn exact_sizes(&self) -> bool {
        self.exact_sizes
    }

    fn start_interval(&self) {
        self.peak_in_use.store(0, Relaxed);
        self.peak_reserved.store(0, Relaxed);
        self.now();
    }

    fn sample(&self) -> Bytes {
        let usage = self.now();
        Bytes(usage.map_or(0, |usage| usage.bytes_reserved))
    }
}
