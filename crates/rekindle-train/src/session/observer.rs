//! The observer interface of a run.

use std::ops::ControlFlow;

use rekindle_plan::Bytes;

use super::{Planned, PlannedAgain};
use crate::{
    nonfinite::NonFinite,
    record::{EvalRecord, MemoryGrowth, StepRecord},
    run_dir::Notice,
    tracker::TrackedPass,
};
use rekindle::meter::PeakMemory;

/// Memory during a run.
#[derive(Debug, Clone, Copy)]
pub struct MemoryNow {
    /// Bytes in use after the last step.
    pub in_use: Bytes,
    /// Bytes after the last step, as the budget counts them.
    pub counted: Bytes,
    /// The highest value of these so far.
    pub counted_peak: Bytes,
    /// The highest peak so far.
    pub peak: PeakMemory,
}

/// Receives the events of a run, and may stop it. All methods have defaults; `()` ignores all events.
pub trait Observer {
    /// The step's operations are being measured: `done` of `of` runs are done.
    fn measuring(&mut self, _done: usize, _of: usize) {}
    /// The plan is made; training starts with this step, from 1.
    fn planned(&mut self, _planned: &Planned, _step: usize) {}
    /// A step is done. Returning `Break` stops the run cleanly.
    fn stepped(&mut self, _step: &StepRecord, _memory: MemoryNow) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// Memory in use grows with the steps. Reported once.
    fn grows(&mut self, _growth: &MemoryGrowth) {}
    /// A tracked step is done.
    fn tracked(&mut self, _passes: &[TrackedPass]) {}
    /// A step was abandoned because of too little memory, or the next one would be: another plan is used from here on.
    fn planned_again(&mut self, _again: &PlannedAgain<'_>) {}
    /// The loss or a gradient of a step is not finite, and the run continues.
    fn nonfinite(&mut self, _found: &NonFinite) {}
    /// No snapshot is taken after this step, because `what` is not finite: the previous one is kept.
    fn snapshot_withheld(&mut self, _step: usize, _what: &str) {}
    /// Something about the run's folder that does not end the run.
    fn notified(&mut self, _notice: &Notice<'_>) {}
    /// An evaluation has processed `done` of `of` samples. Returning `Break` stops the run cleanly, without this
    /// evaluation.
    fn evaluating(&mut self, _done: usize, _of: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// An evaluation is done.
    fn evaluated(&mut self, _evaluation: &EvalRecord) {}
}

impl Observer for () {}
