//! cubecl's memory pools as a meter.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use burn::tensor::backend::Backend;
use cubecl::Runtime;
use rekindle_plan::{Bytes, pools::PoolMode};

use super::{Census, MemoryReading, Meter, PeakMemory};

/// In use and reserved bytes of the pools that belong to the calling thread's stream on one device.
///
/// `B` is the backend whose queue is drained before a reading, `R` the cubecl runtime below it.
pub struct CubeMeter<B: Backend, R: Runtime<Device = B::Device>> {
    device: B::Device,
    pools: PoolMode,
    context: Bytes,
    peak_in_use: AtomicU64,
    peak_reserved: AtomicU64,
    lifetime_in_use: AtomicU64,
    lifetime_reserved: AtomicU64,
    types: PhantomData<fn() -> (B, R)>,
}

impl<B: Backend, R: Runtime<Device = B::Device>> CubeMeter<B, R> {
    /// A meter for `device`, whose pools are of this kind. The device must be one that answers: touching another may
    /// panic.
    #[must_use]
    pub fn new(device: B::Device, pools: PoolMode) -> Self {
        Self {
            device,
            pools,
            context: Bytes(0),
            peak_in_use: AtomicU64::new(0),
            peak_reserved: AtomicU64::new(0),
            lifetime_in_use: AtomicU64::new(0),
            lifetime_reserved: AtomicU64::new(0),
            types: PhantomData,
        }
    }

    /// Counts what the driver's context took as well.
    #[must_use]
    pub fn with_context(self, context: Bytes) -> Self {
        Self { context, ..self }
    }

    fn now(&self) -> (u64, u64) {
        // A device that failed cannot be asked; the operation that failed reports it.
        let Ok(usage) = R::client(&self.device).memory_usage() else {
            return (0, 0);
        };
        self.peak_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.peak_reserved.fetch_max(usage.bytes_reserved, Relaxed);
        self.lifetime_in_use.fetch_max(usage.bytes_in_use, Relaxed);
        self.lifetime_reserved
            .fetch_max(usage.bytes_reserved, Relaxed);
        (usage.bytes_in_use, usage.bytes_reserved)
    }
}

impl<B: Backend, R: Runtime<Device = B::Device>> Meter for CubeMeter<B, R> {
    fn read(&self) -> MemoryReading {
        // With fusion, operations wait in a stream that the pools know nothing of.
        let _ = B::sync(&self.device);
        let (in_use, reserved) = self.now();
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
        let _ = B::sync(&self.device);
        B::memory_cleanup(&self.device);
        // The clean-up is queued.
        let _ = B::sync(&self.device);
        self.now();
    }

    fn exact_sizes(&self) -> bool {
        self.pools == PoolMode::ExactSizes
    }

    fn start_interval(&self) {
        self.peak_in_use.store(0, Relaxed);
        self.peak_reserved.store(0, Relaxed);
        self.now();
    }

    fn census(&self, into: &mut Census) {
        let _ = B::sync(&self.device);
        let usage = R::client(&self.device).memory_usage();
        into.all = usage
            .ok()
            .map(|usage| (usage.number_allocs, Bytes(usage.bytes_in_use)));
    }

    fn sample(&self) {
        self.now();
    }
}
