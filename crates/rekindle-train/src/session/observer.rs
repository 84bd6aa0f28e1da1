//! Who is told what a run does.

use std::ops::ControlFlow;

use rekindle_plan::Bytes;

use super::{Planned, PlannedAgain};
use crate::{
    nonfinite::NonFinite,
    record::{EvalRecord, MemoryGrowth, StepRecord},
    run_dir::Notice,
    tracker::TrackedMoment,
};
use rekindle::meter::PeakMemory;

/// Memory while a run goes on.
#[derive(Debug, Clone, Copy)]
pub struct MemoryNow {
    /// Bytes in use after the last step.
    pub in_use: Bytes,
    /// Bytes after the last step that a budget counts.
    pub counted: Bytes,
    /// The most of these so far.
    pub counted_peak: Bytes,
    /// The highest peak so far.
    pub peak: PeakMemory,
}

/// Is told what a run does, and may stop it. What it does not care for it need not take; `()` takes nothing.
pub trait Observer {
    /// The step's operations run and are measured: `done` of `of` runs are over.
    fn measuring(&mut self, _done: usize, _of: usize) {}
    /// The plan is made; training starts.
    fn planned(&mut self, _planned: &Planned) {}
    /// A step is done. Breaking stops the run in good order.
    fn stepped(&mut self, _step: &StepRecord, _memory: MemoryNow) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// More and more memory is in use, and steps were found to leave some behind.
    fn grows(&mut self, _growth: &MemoryGrowth) {}
    /// A step is done, and what came and went in it was tracked.
    fn tracked(&mut self, _moments: &[TrackedMoment]) {}
    /// A step was abandoned for want of memory, or the next would be: another plan runs it from here on.
    fn planned_again(&mut self, _again: &PlannedAgain<'_>) {}
    /// The loss or a gradient of a step is not finite, and the run goes on.
    fn nonfinite(&mut self, _found: &NonFinite) {}
    /// No snapshot is taken after this step, because `what` is not finite: the one before stays.
    fn snapshot_withheld(&mut self, _step: usize, _what: &str) {}
    /// Something about the run's folder that does not end the run.
    fn notified(&mut self, _notice: &Notice<'_>) {}
    /// An evaluation has seen `done` of `of` samples. Breaking stops the run in good order, without this evaluation.
    fn evaluating(&mut self, _done: usize, _of: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// An evaluation is done.
    fn evaluated(&mut self, _evaluation: &EvalRecord) {}
}

impl Observer for () {}
