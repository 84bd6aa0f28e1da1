//! Forward, loss and backward of a batch, part by part.

use rekindle::{
    meter::{PeakMemory, Phase, PhaseRecorder},
    record::Update,
    seed::StepSeed,
};

use super::{
    Trainer,
    parts::{Parts, accumulate, raise},
    step_batch,
};
use crate::{data::batch::Batch, engine::PartOutput, finite, train_error::TrainError};

impl Trainer {
    /// Runs all parts, with the update where it belongs to the backward.
    pub(super) fn parts(
        &mut self,
        parts: impl ExactSizeIterator<Item = Result<Batch, TrainError>>,
        rate: f64,
    ) -> Result<Parts, TrainError> {
        let count = parts.len();
        let scale = self.loss_scale().unwrap_or(1.0);
        let mut all = Parts {
            peak: self.no_peak(),
            ..Parts::default()
        };
        for (part, batch) in parts.enumerate() {
            let batch = batch?;
            all.tally.samples += batch.samples();
            all.tally.predictions += batch.targets.len();
            let run = self.steps_done * count + part;
            let part = self.run_part(batch, run as u64, rate)?;
            match count {
                1 => all.gradients = part.gradients,
                _ => accumulate(&self.model, &mut all.gradients, part.gradients),
            }
            all.loss += finite::read(part.loss)? / scale;
            all.tally.add_correct(part.auxiliary)?;
            raise(&mut all.peak, &part.phases);
            all.phases = part.phases;
            all.spans = part.spans;
            if let Some(part) = part.exchange {
                all.exchange.get_or_insert_default().add_part(part);
            }
        }
        Ok(all)
    }

    /// Runs one of some equal parts. Losses and gradients of the parts add up to those of the whole batch's mean.
    fn run_part(&mut self, batch: Batch, run: u64, rate: f64) -> Result<PartOutput, TrainError> {
        let mut before = PhaseRecorder::start(&*self.meter);
        self.engine.step.make_room(batch.bytes(self.settings.dtype));
        let scaler = &self.optimizer.scaler;
        let batch = step_batch(batch, self.settings.dtype, scaler, &self.device)?;
        before.end(Phase::ZeroGrad);
        let seed = StepSeed::new(self.settings.seed, run).of_rank(self.ranks.rank());
        let (engine, device) = (&self.engine, &self.device);
        let mut part = match engine.step.update() {
            Update::After => engine.run(&self.model, batch, seed, device)?,
            Update::InBackward => {
                let update = (rate, &mut self.optimizer);
                engine.run_updating(&mut self.model, batch, seed, update, device)?
            }
        };
        part.phases.splice(0..0, before.finish());
        Ok(part)
    }

    /// Below every peak: nothing but what the driver's context took.
    pub(super) fn no_peak(&self) -> PeakMemory {
        PeakMemory {
            context_bytes: self.meter.context_bytes(),
            ..PeakMemory::default()
        }
    }
}
