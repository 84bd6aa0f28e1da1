//! What each phase of a step leaves behind: where memory grows from step to step.
//!
//! Bytes in use do not tell where memory is lost: what one phase keeps by mistake raises them in every later phase, too. So
//! for a few steps the allocator remembers in which phase each block was allocated. Activations and gradients are gone
//! when their step ends, parameters, optimizer state and statistics when the next step has replaced them. A block that is
//! still there one step later was left behind by the phase that allocated it. What only one of two steps leaves, such as
//! a table that grew, is not counted.
//!
//! It is the process's own memory that is looked at. Buffers of a GPU's pools are not told apart: there are only
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

/// Steps of one look: two that leave something, and one in which they may replace it.
const STEPS: usize = 3;

/// Whether a look goes on. A tracker counts blocks as well, from one action to the next.
static LOOKING: AtomicBool = AtomicBool::new(false);

/// A phase of the process's steps is over.
pub(super) fn end_phase(phase: Option<Phase>) {
    if LOOKING.load(Relaxed) {
        rekindle_alloc::end_interval(kind(phase));
    }
}

/// What the allocator calls a phase.
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

/// A look at what the steps of a training loop leave behind.
///
/// One at a time in a process, and not while [blocks are counted](super::Meter::count_blocks) for something else. Phases are
/// those that an executor or a recorded step with a [`HostMeter`](super::HostMeter) goes through, and those of the program's own
/// [`PhaseRecorder`](super::PhaseRecorder).
///
/// ```
/// # use rekindle::meter::{HostMeter, Leftovers, Phase, PhaseRecorder};
/// # #[global_allocator]
/// # static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
/// let meter = HostMeter::new()?;
/// let mut kept = Vec::with_capacity(10);
/// let mut look = Leftovers::start()?;
/// let left = loop {
///     let mut phases = PhaseRecorder::start(Some(&meter));
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
    /// Where steps begin and end, in intervals.
    borders: Vec<u32>,
}

impl Leftovers {
    /// Starts to look, between two steps. Until it is dropped every allocation takes some tens of nanoseconds more.
    ///
    /// # Errors
    ///
    /// If the process's allocator does not count.
    pub fn start() -> Result<Self, NotInstalled> {
        if !rekindle_alloc::installed() {
            return Err(NotInstalled);
        }
        let mut borders = Vec::with_capacity(STEPS + 1);
        // Down to the nodes of a graph.
        rekindle_alloc::start_census(1);
        borders.push(rekindle_alloc::interval());
        LOOKING.store(true, Relaxed);
        Ok(Self { borders })
    }

    /// A step is over, its update included: after the third, what every step leaves behind, the most first. Nothing of
    /// steps whose batches come in more than 900 parts.
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
