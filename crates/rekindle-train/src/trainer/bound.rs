//! The bounds of a trainer's steps: the budget and the plan's peak.

use rekindle::meter::{Count, Meter, PeakMemory};
use rekindle_plan::Bytes;

use crate::shortage::Shortage;

/// The memory bounds of a step.
#[derive(Default)]
pub(super) struct Bound {
    pub(super) budget: Option<Bytes>,
    pub(super) count: Count,
    /// The plan's peak.
    pub(super) peak: Bytes,
    /// Whether a step is done, with which the optimizer's state came.
    pub(super) settled: bool,
}

impl Bound {
    /// An allocation that failed, or a step that took more than its budget.
    pub(super) fn shortage(&self, meter: &dyn Meter, peak: PeakMemory) -> Option<Shortage> {
        if let Some(failure) = meter.failure() {
            return Some(Shortage::Failed(failure));
        }
        let peak = peak.counted(self.count);
        let budget = self.budget.filter(|budget| peak > *budget)?;
        Some(Shortage::OverBudget { peak, budget })
    }
}
