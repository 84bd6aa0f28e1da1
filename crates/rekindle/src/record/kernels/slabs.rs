//! The slabs that threads of this process keep from their first matrix product on: taken before a step is measured, so that
//! they are in use and neither part of an output nor counted twice.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

use gemm_common::{cache::CACHE_INFO, gemm::L2_SLAB};

use super::Keepers;
use crate::record::recording::Recording;

static POOL_KEEPS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// A slab is as large as a second-level cache.
pub(super) fn bytes_of_each() -> u64 {
    CACHE_INFO[1].cache_bytes as u64
}

impl Keepers {
    /// Those that keep no slab yet.
    pub(in crate::record) fn missing(recording: &Recording) -> Self {
        let all = Self::of(recording);
        Self {
            caller: all.caller && !KEEPS.get(),
            pool: all.pool && !POOL_KEEPS.load(Ordering::Relaxed),
        }
    }

    /// Bytes of their slabs.
    pub(in crate::record) fn bytes(self) -> u64 {
        self.count(rayon::current_num_threads() as u64) * bytes_of_each()
    }

    /// Has them take their slabs.
    pub(in crate::record) fn keep(self) {
        let keep = || {
            L2_SLAB.with(|_| ());
            KEEPS.set(true);
        };
        if self.caller {
            keep();
        }
        if self.pool {
            rayon::broadcast(|_| keep());
            POOL_KEEPS.store(true, Ordering::Relaxed);
        }
    }
}
