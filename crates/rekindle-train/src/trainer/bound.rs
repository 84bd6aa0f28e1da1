//! The bounds of a trainer's steps: the budget and the plan's peak.

use burn::tensor::Tensor;
use rekindle::{
    meter::{Count, PeakMemory},
    record::Update,
};
use rekindle_plan::Bytes;

use super::Trainer;
use crate::{engine::Engine, finite, ranks::Tally, shortage::Shortage, train_error::TrainError};

/// Bytes of a buffer for testing a device: below the buffer size limit of any device.
const TRIAL_BYTES: u64 = 128 << 20;

/// The memory bounds of a step.
#[derive(Default)]
pub(super) struct Bound {
    budget: Option<Bytes>,
    count: Count,
    /// The plan's peak.
    peak: Bytes,
    /// Whether a step is done, so that the optimizer's state is allocated.
    pub(super) settled: bool,
}

impl Trainer {
    /// Bounds steps by a budget, which counts these bytes; the plan's peak is `peak`.
    pub(crate) fn bounded(mut self, budget: Option<Bytes>, count: Count, peak: Bytes) -> Self {
        self.bound = Bound {
            budget,
            count,
            peak,
            settled: false,
        };
        self
    }

    /// Runs another plan, whose peak is `peak`, from the next step on.
    pub(crate) fn run_by(&mut self, engine: Engine, peak: Bytes) {
        self.engine = engine;
        self.bound.peak = peak;
    }

    /// The peak of the plan that runs now.
    pub(crate) fn planned_peak(&self) -> Bytes {
        self.bound.peak
    }

    /// The highest peak so far of the bytes that a budget counts.
    pub(super) fn counted_peak(&self) -> Bytes {
        self.meter.lifetime_peak().counted(self.bound.count)
    }

    /// Fails on all ranks before their first common step if a rank has no memory for an update within it.
    pub(super) fn check_first_step(&self) -> Result<(), TrainError> {
        if self.bound.settled {
            return Ok(());
        }
        let room = match self.engine.update() {
            Update::InBackward => self.check_first_update(),
            Update::After => Ok(()),
        };
        let told = room.map(|()| Tally::default());
        self.ranks.tell(told, || self.counted_peak()).map(drop)
    }

    /// Fails if a device has no memory for the first update, which allocates the optimizer's state: an update that has
    /// begun cannot be undone.
    pub(super) fn check_first_update(&self) -> Result<(), TrainError> {
        if self.bound.settled || self.meter.read().reserved_bytes.is_none() {
            return Ok(());
        }
        self.meter.trim();
        let device = self.device.clone().without_autodiff();
        let bytes = self.engine.first_update().0;
        let held = (0..bytes).step_by(TRIAL_BYTES as usize).map(|at| {
            let part = TRIAL_BYTES.min(bytes - at);
            Tensor::<1>::empty([part.div_ceil(size_of::<f32>() as u64) as usize], &device)
        });
        let held: Vec<_> = held.collect();
        let mut read = held
            .iter()
            .map(|part| finite::read(part.clone().slice(0..1)));
        let had = read.try_for_each(|value| value.map(drop));
        drop(held);
        self.meter.trim();
        had
    }

    /// A failed allocation, or a step that exceeded its budget, if any.
    pub(super) fn shortage(&self, peak: PeakMemory) -> Option<Shortage> {
        if let Some(failure) = self.meter.failure() {
            return Some(Shortage::Failed(failure));
        }
        let peak = peak.counted(self.bound.count);
        let budget = self.bound.budget.filter(|budget| peak > *budget)?;
        Some(Shortage::OverBudget { peak, budget })
    }
}
