//! What happens in a run, told while it runs.

use rekindle_plan::Bytes;

use super::Planned;
use crate::{
    nonfinite::NonFinite,
    record::{EvalRecord, MemoryGrowth, StepRecord},
    shortage::Shortage,
    tracker::TrackedPass,
};

/// Memory during a run.
#[derive(Debug, Clone, Copy)]
pub struct MemoryNow {
    /// Bytes in use after the last step.
    pub in_use: Bytes,
    /// Bytes after the last step, as the budget counts them.
    pub counted: Bytes,
    /// The highest peak so far, of the same bytes.
    pub counted_peak: Bytes,
}

/// Something that happens in a run.
pub enum Event<'a> {
    /// The step's operations are being measured.
    Measuring {
        /// Runs that are done.
        done: usize,
        /// All runs.
        of: usize,
    },
    /// The plan is made.
    Planned {
        /// The plan.
        planned: &'a Planned,
        /// The step that it runs first, from 1.
        step: usize,
    },
    /// A step is done.
    Stepped {
        /// Its loss, its time.
        step: &'a StepRecord,
        /// Memory after it.
        memory: MemoryNow,
        /// Whether the run stops cleanly here.
        stop: &'a mut bool,
    },
    /// A tracked step is done.
    Tracked(&'a [TrackedPass]),
    /// Memory in use grows with the steps. Told once.
    Grows(MemoryGrowth),
    /// A step was abandoned because of too little memory, or the next one would be: another plan is used from here on.
    PlannedAgain {
        /// The step that it runs first, from 1.
        step: usize,
        /// The cause.
        shortage: &'a Shortage,
        /// The budget of the previous plan, or its peak if it had none.
        before: Bytes,
        /// The budget of this one.
        budget: Bytes,
        /// The plan.
        planned: &'a Planned,
    },
    /// The loss or a gradient of a step is not finite, and the run continues.
    NonFinite(&'a NonFinite),
    /// Something that the user should know and that does not end the run, in words: a file that cannot be written, a snapshot
    /// that is not taken, an earlier one that is used. Of a file once for each reason, until it can be written.
    Noticed(&'a str),
    /// A file that could not be written before has been written, in words.
    WrittenAgain(&'a str),
    /// The run is over, and not all of its folder could be written last, in words.
    Unwritten(&'a str),
    /// An evaluation goes on.
    Evaluating {
        /// Samples that are done.
        done: usize,
        /// All samples.
        of: usize,
        /// Whether the run stops cleanly here, without this evaluation.
        stop: &'a mut bool,
    },
    /// An evaluation is done.
    Evaluated(&'a EvalRecord),
}

/// Takes the events of a run.
pub type Tell<'a> = dyn FnMut(Event<'_>) + 'a;
