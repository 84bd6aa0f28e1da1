//! Room for the first update, checked before it: one that has begun cannot be taken back.

use burn::tensor::Tensor;
use rekindle::record::Update;

use super::Trainer;
use crate::{finite, ranks::Tally, train_error::TrainError};

/// Bytes of a buffer by which a device is tried: fewer than any device refuses for their size alone.
const TRIAL_BYTES: u64 = 128 << 20;

impl Trainer<'_> {
    /// Fails on all ranks before the first step that they run together, where one has no room for an update within it.
    pub(super) fn check_first_step(&self) -> Result<(), TrainError> {
        if self.settled {
            return Ok(());
        }
        let room = match self.engine.step.update() {
            Update::InBackward => self.check_first_update(),
            Update::After => Ok(()),
        };
        let told = room.map(|()| Tally::default());
        self.job.ranks.tell(told, || self.counted_peak()).map(drop)
    }

    /// Fails where a device has no room for the first update, in which the optimizer's state comes: an update that has begun
    /// cannot be taken back.
    pub(super) fn check_first_update(&self) -> Result<(), TrainError> {
        if self.settled || self.meter.read().reserved_bytes.is_none() {
            return Ok(());
        }
        self.meter.trim();
        let device = self.device.clone().without_autodiff();
        let optimizer = self.engine.step.optimizer_cost();
        let bytes = (optimizer.state_bytes + optimizer.temp_bytes).0;
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
}
