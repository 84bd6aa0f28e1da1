//! Steps that recompute nothing, run for comparison.

use rekindle::meter::PeakMemory;
use rekindle_plan::Planner;

use super::{Trainer, bound::Bound, parts::raise};
use crate::{data::batch::Batch, step_times::StepTimes, train_error::TrainError};

/// Number of steps.
const PLAIN_STEPS: usize = 6;

impl Trainer {
    /// Continues with a few steps without recomputing, otherwise like the run's own, each on `parts`. Returns the
    /// highest peaks, and the times of all but the first. Later steps do not recompute either.
    pub(crate) fn plain_steps<P: ExactSizeIterator<Item = Result<Batch, TrainError>>>(
        &mut self,
        parts: impl Fn() -> P,
    ) -> Result<(PeakMemory, StepTimes), TrainError> {
        self.bound = Bound::default();
        self.engine.step.plan_again(None, Planner::None)?;
        let mut peak = self.no_peak();
        let mut times = StepTimes::new();
        for step in 0..PLAIN_STEPS {
            let report = self.step(parts())?;
            raise(&mut peak, &report.phases);
            times.add(report.record.step_s, step > 0);
        }
        Ok((peak, times))
    }
}
