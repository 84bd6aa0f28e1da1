//! A device's memory pools as a meter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::{Device, MemoryPoolUsage};
#[cfg(feature = "wgpu")]
use burn_backend::cubecl::RuntimeId;
#[cfg(feature = "wgpu")]
use burn_dispatch::DispatchDevice;
use rekindle_plan::Bytes;

use super::{MemoryReading, Meter, PeakMemory};

/// In use and reserved bytes of a device's pools, over all its streams.
///
/// Every reading, also [`held`](Meter::held), first runs the operations that fusion has deferred, because their buffers are
/// not allocated before.
pub struct PoolMeter {
    device: Device,
    driver: Driver,
    /// What the driver held besides the pools' buffers when it was last asked.
    beside: AtomicU64,
    /// The same after the last clean-up.
    settled: AtomicU64,
    peak_in_use: AtomicU64,
    peak_reserved: AtomicU64,
    lifetime_in_use: AtomicU64,
    lifetime_reserved: AtomicU64,
    lifetime_held: AtomicU64,
}

/// What a GPU's driver says of this process's memory.
pub struct Driver {
    /// What its context took when it was created.
    pub context: Bytes,
    /// The unit that it rounds large allocations up to; zero if it rounds none.
    pub unit: Bytes,
    /// All that this process holds of the device now: the pools' buffers, each rounded up, the context, and loaded kernels.
    /// `None` where the driver does not say.
    pub held: Box<dyn Fn() -> Option<Bytes> + Send + Sync>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            context: Bytes::ZERO,
            unit: Bytes::ZERO,
            held: Box::new(|| None),
        }
    }
}

impl PoolMeter {
    /// A meter for `device`, which must be usable and have pools; other devices may panic. Applies the pools' settings
    /// first if no device has been used yet.
    #[must_use]
    pub fn new(device: Device) -> Self {
        #[cfg(feature = "cubecl")]
        crate::cubecl::set_up();
        Self {
            device,
            driver: Driver::default(),
            beside: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            peak_in_use: AtomicU64::new(0),
            peak_reserved: AtomicU64::new(0),
            lifetime_in_use: AtomicU64::new(0),
            lifetime_reserved: AtomicU64::new(0),
            lifetime_held: AtomicU64::new(0),
        }
    }

    /// A meter for `device`, if it has pools.
    #[must_use]
    pub fn of(device: &Device) -> Option<Self> {
        let meter = Self::new(device.clone());
        meter.now()?;
        Some(meter)
    }

    /// Also counts what the driver holds besides the pools' buffers.
    #[doc(hidden)]
    #[must_use]
    pub fn with_driver(self, driver: Driver) -> Self {
        Self {
            beside: AtomicU64::new(driver.context.0),
            settled: AtomicU64::new(driver.context.0),
            driver,
            ..self
        }
    }

    /// The pools' usage; `None` if the device has failed: the failed operation reports the error.
    fn now(&self) -> Option<MemoryPoolUsage> {
        let usage = self.device.memory_pool_usage()?;
        if in_dry_run() {
            // No kernel runs on the buffers, so they take no device memory and do not count towards peaks.
            return Some(usage);
        }
        self.peak_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.peak_reserved.fetch_max(usage.bytes_reserved, Relaxed);
        self.lifetime_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        let before = self
            .lifetime_reserved
            .fetch_max(usage.bytes_reserved, Relaxed);
        if usage.bytes_reserved > before {
            self.ask_driver(usage);
        }
        Some(usage)
    }

    /// Notes what the driver holds besides the pools' buffers, if it says so. Asking takes a system call, so it is done only
    /// where the pools have grown to a new peak, after a clean-up, and where a budget might be exceeded.
    fn ask_driver(&self, usage: MemoryPoolUsage) {
        if in_dry_run() {
            return;
        }
        if let Some(held) = (self.driver.held)() {
            let beside = held.0.saturating_sub(usage.bytes_reserved);
            self.beside
                .store(beside.max(self.driver.context.0), Relaxed);
        }
        let held = usage.bytes_reserved + self.beside.load(Relaxed);
        self.lifetime_held.fetch_max(held, Relaxed);
    }

    /// Waits for queued work. Errors are ignored here: the failed operation reports them.
    fn wait(&self) {
        let _ = self.device.sync();
    }
}

/// Whether cubecl drops the launches of kernels.
fn in_dry_run() -> bool {
    #[cfg(feature = "cubecl")]
    return cubecl_runtime::dry_run::dry_run();
    #[cfg(not(feature = "cubecl"))]
    false
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
        let reserved = Bytes(self.lifetime_reserved.load(Relaxed));
        PeakMemory {
            in_use_bytes: Bytes(self.lifetime_in_use.load(Relaxed)),
            reserved_bytes: Some(reserved),
            context_bytes: Bytes(self.lifetime_held.load(Relaxed)) - reserved,
        }
    }

    fn context_bytes(&self) -> Bytes {
        Bytes(self.settled.load(Relaxed))
    }

    fn allocation_unit(&self) -> Bytes {
        self.driver.unit
    }

    fn held(&self) -> Bytes {
        let reserved = self.now().map_or(0, |usage| {
            self.ask_driver(usage);
            usage.bytes_reserved
        });
        Bytes(reserved + self.beside.load(Relaxed))
    }

    fn trim(&self) -> Bytes {
        // Take a reading before the clean-up, for the peak of the reserved bytes, and to run the operations that fusion
        // has deferred: they hold buffers.
        self.now();
        self.device.memory_cleanup();
        // The pools have released their free buffers, but the device frees them only when its queued work is done.
        self.wait();
        let held = self.held();
        if !in_dry_run() {
            self.settled.store(self.beside.load(Relaxed), Relaxed);
        }
        held
    }

    fn largest_buffer(&self) -> Option<Bytes> {
        // wgpu's limit on the bytes bound of one buffer bounds cubecl's pages, too.
        #[cfg(feature = "wgpu")]
        if let DispatchDevice::Cube(cube) = self.device.clone().without_autodiff().as_dispatch()
            && cube.runtime() == RuntimeId::Wgpu
        {
            return Some(Bytes(cube.client().properties().memory.max_page_size));
        }
        None
    }

    fn start_interval(&self) {
        self.peak_in_use.store(0, Relaxed);
        self.peak_reserved.store(0, Relaxed);
        self.now();
    }
}
