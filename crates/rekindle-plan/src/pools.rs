//! What a device's memory pools take from it while a schedule runs.
//!
//! Buffers in use are not what a device loses: cubecl serves them from pools, and what a pool has taken stays taken
//! until an explicit cleanup. This module replays the buffers of a schedule against a model of those pools, and says
//! which of the two kinds takes less.
//!
//! | file | what it owns |
//! |---|---|
//! | `allocator.rs` | [`Pools`]: where a buffer goes |
//! | `exact_sizes.rs` | the pool of exact sizes |
//! | `sliced.rs`, `page.rs` | the pools of pages, the gaps of one page |
//! | `trace.rs` | which buffers a schedule makes and frees, in which order |
//! | `choice.rs` | [`choose`]: the mode that takes less |
//!
//! # Source
//! The pools follow cubecl 0.10.0 (`cubecl-runtime`, `src/memory_management`); each file names its part. Checked once
//! against cubecl's `MemoryManagement`: after each of 120,000 random takes and frees of aligned sizes, on devices with
//! largest pages from 31 MiB to 36 GB, bytes reserved and in use were equal.
//!
//! # Limits
//! - **Stage granularity.** A [`Chain`] knows what a stage makes, not its tensors. A stage's parameters are one buffer,
//!   its gradients are one, what a graph saves besides the output is buffers as large as the output and a rest, and
//!   temporary bytes are one buffer that is there from the action's start to its end. In truth they are several, of
//!   sizes of their own: a weight and its bias, workspaces. So exact sizes may take more than is said here (more distinct
//!   sizes) or less (small temporary buffers that serve another stage), and pages may cut up otherwise. That a size
//!   coincides with a parameter's is seen only where the stages' sums coincide.
//! - Parameters are taken as long-lived: burn makes those that come from data or from a record so. Ones that are drawn at
//!   random under fusion are computed later, and may lie in pages.
//! - An action frees what it frees at its end, as the simulator has it. A backward frees earlier as it goes.
//! - Not counted: the pools of other streams, pinned and uniform memory, autotune's buffers, the driver's context, and
//!   what an explicit cleanup gives back.
//! - cubecl reports a page without what splits of unaligned slices lost in it. Its tensors are always aligned, so no such
//!   slices are made; here a page counts whole.

mod allocator;
mod choice;
mod exact_sizes;
mod page;
mod sliced;
mod trace;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::schedule::Schedule;
use crate::simulator::Violation;

pub use allocator::{Buffer, Pools, TooLarge};
pub use choice::{PoolChoice, choose};

/// What pools know of their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDevice {
    /// The largest page that can be taken: a quarter of the memory on CUDA, the largest storage binding on wgpu.
    pub max_page_bytes: Bytes,
    /// Every buffer's size is rounded up to a multiple of this. Zero is taken as one.
    pub alignment: Bytes,
}

impl PoolDevice {
    /// A CUDA device with so much memory: its largest page is a quarter of it, its alignment 512 bytes
    /// (`cubecl-cuda` 0.10.0, `src/runtime.rs`).
    pub fn cuda(total: Bytes) -> PoolDevice {
        PoolDevice {
            max_page_bytes: Bytes(total.0 / 4),
            alignment: Bytes(512),
        }
    }

    /// A size rounded up to the alignment.
    fn align(self, size: Bytes) -> Bytes {
        let aligned = size.0.checked_next_multiple_of(self.alignment.0.max(1));
        aligned.map_or(Bytes::MAX, Bytes)
    }

    /// The largest page, rounded down to the alignment.
    fn largest_page(self) -> Bytes {
        let beyond = self.max_page_bytes.0 % self.alignment.0.max(1);
        self.max_page_bytes - Bytes(beyond)
    }
}

/// The kind of pools that serve a device's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolMode {
    /// Every buffer has its exact size, aligned, and once free serves only that size: cubecl's persistent pool, with
    /// `persistent_memory = "enforced"`.
    ExactSizes,
    /// Slices of pages of a few growing sizes: cubecl's default (`SubSlices`). Long-lived buffers, and others of their
    /// sizes, have exact sizes in this mode too.
    #[default]
    Pages,
}

impl PoolMode {
    /// Both.
    pub const ALL: [PoolMode; 2] = [PoolMode::ExactSizes, PoolMode::Pages];

    /// The name for people, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            PoolMode::ExactSizes => "exact sizes",
            PoolMode::Pages => "pages",
        }
    }
}

impl fmt::Display for PoolMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What pools take while a schedule runs twice, the second time in the pools as the first left them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// The most bytes taken from the device: what is taken at the end, since nothing is given back.
    pub peak_reserved: Bytes,
    /// The most bytes of live buffers, each aligned.
    pub peak_in_use: Bytes,
    /// The bytes taken after each action: of the first step, then of the second.
    pub at_each_action: Vec<Bytes>,
}

/// Why a schedule's pools cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The schedule cannot run on the chain.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// A buffer fits no page. Where it stands for several (see the [module](self)'s limits), the device may still hold
    /// them.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// What the pools of a device take while two steps of a schedule run on a chain.
///
/// Costs O(actions x gaps in the pages), and O(actions x log sizes) for exact sizes.
///
/// # Errors
/// The schedule cannot run on the chain, or, with [`PoolMode::Pages`], a buffer is larger than the largest page.
pub fn reserved(
    chain: &Chain,
    schedule: &Schedule,
    mode: PoolMode,
    device: PoolDevice,
) -> Result<PoolUse, PoolError> {
    let mut pools = Pools::new(mode, device);
    let at_each_action = trace::two_steps(chain, schedule, &mut pools)?;
    Ok(PoolUse {
        peak_reserved: pools.reserved(),
        peak_in_use: pools.peak_in_use(),
        at_each_action,
    })
}
