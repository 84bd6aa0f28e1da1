//! Evaluations between steps.

use rekindle::layer::Layer;

use super::Trainer;
use crate::{
    data::batch::Batch, engine::to_device, finite, ranks::Tally, record::EvalRecord,
    train_error::TrainError,
};

impl Trainer<'_> {
    /// Mean loss and accuracy over the batches of all ranks, with dropout off and batch normalisation by its running
    /// statistics.
    pub(crate) fn evaluate(
        &self,
        batches: impl Iterator<Item = Batch>,
    ) -> Result<EvalRecord, TrainError> {
        let own = self.evaluated(batches);
        let all = self.job.ranks.tell(own, || self.counted_peak())?;
        Ok(EvalRecord {
            step: self.steps_done,
            samples: all.samples,
            loss: all.loss / all.predictions.max(1) as f64,
            accuracy: all.accuracy(),
        })
    }

    /// This rank's part of an evaluation.
    fn evaluated(&self, batches: impl Iterator<Item = Batch>) -> Result<Tally, TrainError> {
        let model = self.model();
        let device = self.device.clone().without_autodiff();
        let mut all = Tally::default();
        for batch in batches {
            let size = batch.predictions();
            all.samples += batch.samples();
            let (mut value, targets) = to_device(batch, self.job.settings.dtype, &device)?;
            for layer in model.layers() {
                self.engine.step.make_room(self.engine.largest.forward);
                value = layer.forward(value);
            }
            let (mean, correct) = targets.compared(value);
            all.loss += finite::read(mean)? * size as f64;
            all.add_correct(correct)?;
            all.predictions += size;
        }
        Ok(all)
    }
}
