//! Whose kernels compute, and what they keep for good.

use super::cost::{LayerCost, product};

/// Multiply-adds from which a matrix product runs on all threads.
const PARALLEL_MULTIPLY_ADDS: u64 = 192 * 192 * 192;

/// Whose kernels compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// burn's `flex`, on this many threads.
    Host {
        /// Each has a convolution's tile of its own.
        threads: u64,
        /// What a thread keeps for good once it has computed a matrix product.
        slab_bytes: u64,
    },
    /// A GPU's, which need no copies.
    Device,
}

impl Kernels {
    /// This machine's processor: a thread for each core, slabs as large as its second-level cache.
    #[cfg(feature = "flex")]
    #[must_use]
    pub fn host() -> Self {
        Self::Host {
            threads: rayon::current_num_threads() as u64,
            slab_bytes: gemm_common::cache::CACHE_INFO[1].cache_bytes as u64,
        }
    }

    /// What stays in use once all stages have run.
    pub(crate) fn kept_bytes(self, stages: &[LayerCost]) -> u64 {
        let Self::Host {
            threads,
            slab_bytes,
        } = self
        else {
            return 0;
        };
        let parallel = |stage: &LayerCost| stage.multiply_adds >= PARALLEL_MULTIPLY_ADDS;
        product([
            slab_bytes,
            if stages.iter().any(parallel) {
                threads
            } else {
                1
            },
        ])
    }
}
