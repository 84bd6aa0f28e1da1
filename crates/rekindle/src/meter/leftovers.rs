//! Finds the phases of a step that leave memory behind, so that memory grows from step to step.
//!
//! Bytes in use do not show where memory is leaked: memory kept by one phase also raises them in every later phase. So
//! for a few steps the allocator records in which phase each block was allocated. Activations and gradients are freed
//! when their step ends; parameters, optimizer state and statistics are freed when the next step has replaced them. A
//! block that still exists one step later was left behind by the phase that allocated it. Blocks that only one of two
//! steps leaves, such as a table that grew, are not counted.
//!
//! This covers only the process's own memory. Buffers of a GPU's pools cannot be identified; for them there are only
//! [`PhaseChanges`].

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    phase::{self, Phase, PhaseChanges},
    reader::NotInstalled,
};

/// Number of steps observed: two whose blocks are counted, and one in which they may be replaced.
const STEPS: usize = 3;

/// Whether an observation is active. A tracker also counts blocks, from one action to the next.
static LOOKING: AtomicBool = AtomicBool::new(false);

/// Records the end of a phase of the process's steps.
pub(super) fn end_phase(phase: Option<Phase>) {
    if LOOKING.load(Relaxed) {
        rekindle_alloc::end_interval(kind(phase));
    }
}

/// The allocator's number for a phase.
fn kind(phase: Option<Phase>) -> u8 {
    phase::kind(phase) as u8
}

/// Memory that every step leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Leftover {
    /// The phase that allocates it, on a GPU the one that allocates it or should have freed it; `null` outside of phases:
    /// data, evaluations, files.
    pub phase: Option<Phase>,
    /// Bytes that each step adds.
    pub step_bytes: Bytes,
}

/// Finds memory that every step of a training loop leaves behind.
///
/// There can be only one at a time in a process, and none while [blocks are counted](super::Meter::count_blocks) for
/// another purpose. Phases are those of a recorded step with a [`HostMeter`](super::HostMeter), and
/// those of the program's own [`PhaseRecorder`](super::PhaseRecorder).
///
/// ```
/// # use rekindle::meter::{HostMeter, Leftovers, Phase, PhaseRecorder};
/// # #[global_allocator]
/// # static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
/// let meter = HostMeter::new()?;
/// let mut kept = Vec::with_capacity(10);
/// let mut look = Leftovers::start()?;
/// let left = loop {
///     let mut phases = PhaseRecorder::start(&meter);
///     kept.push(vec![0_u8; 1_000]);
///     phases.end(Phase::Forward);
///     if let Some(left) = look.stepped() {
///         break left;
///     }
/// };
/// assert_eq!(left.len(), 1);
/// assert_eq!((left[0].phase, left[0].step_bytes.0), (Some(Phase::Forward), 1_000));
/// # Ok::<(), rekindle::meter::NotInstalled>(())
/// ```
#[derive(Debug)]
pub struct Leftovers {
    /// The intervals at which steps begin and end.
    borders: Vec<u32>,
}

impl Leftovers {
    /// Starts the observation; call it between two steps. Until the returned value is dropped, every allocation takes
    /// some tens of nanoseconds longer.
    ///
    /// # Errors
    ///
    /// If the counting allocator is not installed.
    pub fn start() -> Result<Self, NotInstalled> {
        if !rekindle_alloc::installed() {
            return Err(NotInstalled);
        }
        let mut borders = Vec::with_capacity(STEPS + 1);
        // Count blocks of every size, down to the nodes of a graph.
        rekindle_alloc::start_census(1);
        borders.push(rekindle_alloc::interval());
        LOOKING.store(true, Relaxed);
        Ok(Self { borders })
    }

    /// Call this at the end of a step, after its update. After the third step it returns what every step leaves behind,
    /// largest first. Steps whose batches consist of more than 900 parts are not analysed.
    pub fn stepped(&mut self) -> Option<Vec<Leftover>> {
        rekindle_alloc::end_interval(kind(None));
        self.borders.push(rekindle_alloc::interval());
        let [start, second, third, end] = self.borders[..] else {
            return None;
        };
        if end.wrapping_sub(start) as usize > rekindle_alloc::INTERVALS {
            return Some(Vec::new());
        }
        let left = PhaseChanges::KINDS.map(|phase| {
            let kept = |step: Range<u32>| rekindle_alloc::kept(step, kind(phase));
            let step_bytes = Bytes(kept(start..second).min(kept(second..third)) as u64);
            Leftover { phase, step_bytes }
        });
        let mut left = Vec::from(left);
        left.retain(|left| left.step_bytes > Bytes::ZERO);
        left.sort_by_key(|left| std::cmp::Reverse(left.step_bytes));
        Some(left)
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        LOOKING.store(false, Relaxed);
        rekindle_alloc::stop_census();
    }
}
