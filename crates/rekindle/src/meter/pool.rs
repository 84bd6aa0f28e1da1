//! A device's memory pools as a meter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::{Device, MemoryPoolUsage};
use rekindle_plan::Bytes;

use super::{Census, MemoryReading, Meter, PeakMemory, Phase, PhaseChanges, phase::ChangeCounter};
use crate::device_errors;

/// In use and reserved bytes of a device's pools, over all its streams.
///
/// Every reading makes the operations that fusion holds back run, also one [between actions](Meter::sample): what they
/// will allocate is not in the pools before.
pub struct PoolMeter {
    device: Device,
    exact_sizes: bool,
    context: Bytes,
    peak_in_use: AtomicU64,
    peak_reserved: AtomicU64,
    lifetime_in_use: AtomicU64,
    lifetime_reserved: AtomicU64,
    changes: ChangeCounter,
}

impl PoolMeter {
    /// A meter for `device`, which must have pools, and answer: touching another may panic. Makes the pools' settings first,
    /// where nothing has touched them yet.
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
            changes: ChangeCounter::default(),
        }
    }

    /// A meter for `device`, if it has pools.
    #[must_use]
    pub fn of(device: &Device) -> Option<Self> {
        let meter = Self::new(device.clone());
        meter.now()?;
        Some(meter)
    }

    /// Counts what the driver's context took as well.
    #[must_use]
    pub fn with_context(self, context: Bytes) -> Self {
        Self { context, ..self }
    }

    /// What the pools hold; `None` from a device that failed: the operation that failed reports it.
    fn now(&self) -> Option<MemoryPoolUsage> {
        let usage = self.device.memory_pool_usage()?;
        #[cfg(feature = "cubecl")]
        if cubecl_runtime::dry_run::dry_run() {
            // Of buffers that no kernel runs on, the device gives nothing.
            return Some(usage);
        }
        self.peak_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.peak_reserved.fetch_max(usage.bytes_reserved, Relaxed);
        self.lifetime_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.lifetime_reserved
            .fetch_max(usage.bytes_reserved, Relaxed);
        Some(usage)
    }

    /// Waits for queued work. A failure is the operation's to report.
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
        // What was reserved until now counts, and what fusion holds back must run: it holds buffers.
        self.now();
        self.device.memory_cleanup();
        // The pools have given up their free buffers; the device has them when its work is done.
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

    fn census(&self, into: &mut Census) {
        self.wait();
        let usage = self.device.memory_pool_usage();
        into.all = usage.map(|usage| (usage.number_allocs, Bytes(usage.bytes_in_use)));
    }

    fn end_phase(&self, phase: Option<Phase>) {
        if let Some(usage) = self.now() {
            self.changes.end(phase, usage.bytes_in_use);
        }
    }

    fn take_changes(&self) -> Option<PhaseChanges> {
        Some(self.changes.take())
    }

    fn sample(&self) -> Bytes {
        let usage = self.now();
        Bytes(usage.map_or(0, |usage| usage.bytes_reserved))
    }
}
