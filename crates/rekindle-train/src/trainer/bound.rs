//! What bounds a trainer's steps: the budget, the plan's peak, and what the process comes to hold beside them.

use burn::tensor::Tensor;
use rekindle::{
    meter::{Count, PeakMemory},
    record::Update,
};
use rekindle_plan::Bytes;

use super::Trainer;
use crate::{engine::Engine, finite, ranks::Tally, shortage::Shortage, train_error::TrainError};

/// Bytes of a buffer by which a device is tried: fewer than any device refuses for their size alone.
const TRIAL_BYTES: u64 = 128 << 20;

/// Share of a budget, and bytes, that a process may come to hold beside its steps without another plan: plans leave them.
const UNNOTICED: (f64, u64) = (0.005, 1 << 16);

/// What a step may take, and what was in use before it was there.
#[derive(Default)]
pub(super) struct Bound {
    budget: Option<Bytes>,
    count: Count,
    /// The plan's peak.
    peak: Bytes,
    /// In use after the first step, with the optimizer's state.
    pub(super) settled: Option<Bytes>,
}

impl Trainer {
    /// Bounds steps by a budget, which counts these bytes; the plan's peak is `peak`.
    pub(crate) fn bounded(mut self, budget: Option<Bytes>, count: Count, peak: Bytes) -> Self {
        self.bound = Bound {
            budget,
            count,
            peak,
            settled: None,
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

    /// What is in use beside what the plan counts, where the plan cannot know.
    pub(crate) fn grown_by(&self) -> Bytes {
        match self.bound.settled {
            Some(settled) if !self.engine.counts_growth() => {
                self.meter.read().in_use_bytes - settled
            }
            _ => Bytes::ZERO,
        }
    }

    /// Fails where what is in use beside the step leaves too little of the budget.
    pub(super) fn check_room(&self) -> Result<(), TrainError> {
        let by = self.grown_by();
        let noticed = |budget: Bytes| (budget.0 as f64 * UNNOTICED.0) as u64 + UNNOTICED.1;
        match self.bound.budget {
            Some(budget) if by.0 > noticed(budget) && self.bound.peak + by > budget => {
                Err(TrainError::Short(Shortage::Grown { by, budget }))
            }
            _ => Ok(()),
        }
    }

    /// Fails on all ranks before the first step that they run together, where one has no room for an update within it.
    pub(super) fn check_first_step(&self) -> Result<(), TrainError> {
        if self.bound.settled.is_some() {
            return Ok(());
        }
        let room = match self.engine.update() {
            Update::InBackward => self.check_first_update(),
            Update::After => Ok(()),
        };
        let told = room.map(|()| Tally::default());
        self.ranks.tell(told, || self.counted_peak()).map(drop)
    }

    /// Fails where a device has no room for the first update, in which the optimizer's state comes: an update that has begun
    /// cannot be taken back.
    pub(super) fn check_first_update(&self) -> Result<(), TrainError> {
        if self.bound.settled.is_some() || self.meter.read().reserved_bytes.is_none() {
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

    /// An allocation that failed, or a step that took more than its budget.
    pub(super) fn shortage(&self, peak: PeakMemory) -> Option<Shortage> {
        if let Some(failure) = self.meter.failure() {
            return Some(Shortage::Failed(failure));
        }
        let peak = peak.counted(self.bound.count);
        let budget = self.bound.budget.filter(|budget| peak > *budget)?;
        Some(Shortage::OverBudget { peak, budget })
    }
}
