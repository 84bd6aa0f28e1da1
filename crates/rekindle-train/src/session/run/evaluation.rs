//! Evaluations between steps.

use burn::module::Module;
use rekindle::layer::Layer;

use super::{
    super::{Event, RunError},
    Session,
};
use crate::{
    data::{Dataset, in_order},
    engine::to_device,
    finite,
    ranks::Tally,
    record::EvalRecord,
    shortage::Shortage,
};

impl Session<'_> {
    /// Whether an evaluation is due and was not made yet.
    pub(super) fn evaluation_is_due(&self) -> bool {
        let settings = self.job.settings;
        let done = self.progress.steps;
        let due = settings
            .eval_every
            .is_some_and(|every| done.is_multiple_of(every));
        (due || done == settings.steps) && self.progress.evaluated_at() < done
    }

    /// Evaluates on all ranks, and returns whether this is the best evaluation so far; `None` if it is told to stop.
    pub(super) fn evaluate(&mut self) -> Result<Option<bool>, RunError> {
        let Some(data) = self.job.eval else {
            return Ok(Some(false));
        };
        let mut stop = false;
        let own = self.evaluated(data, &mut stop);
        let all = self.job.ranks.tell(own, || self.counted_peak());
        if self.job.ranks.stops(stop) {
            return Ok(None);
        }
        let all = match all {
            Ok(all) => all,
            Err(error) => {
                self.meter.trim();
                let ended = match error.of_step().and_then(Shortage::of) {
                    Some(shortage) => self.out_of_memory(shortage, None),
                    None => error,
                };
                let ended = self.job.ranks.settled(Err(ended));
                return ended.map_err(|error| self.ended(error, true));
            }
        };
        let evaluation = EvalRecord {
            step: self.progress.steps,
            samples: all.samples,
            loss: all.loss / all.predictions.max(1) as f64,
            accuracy: all.accuracy(),
        };
        (self.tell)(Event::Evaluated(&evaluation));
        if let Some(files) = &mut self.files {
            files.evaluated(&evaluation, self.tell);
        }
        Ok(Some(self.progress.evaluated(&evaluation)))
    }

    /// This rank's part of an evaluation, up to where it is told to stop: with dropout off and batch normalisation by its
    /// running statistics.
    fn evaluated(&mut self, data: &dyn Dataset, stop: &mut bool) -> Result<Tally, RunError> {
        let part = self.job.ranks.part(data.len());
        let (first, samples) = (part.start, part.len());
        let model = self.model.valid();
        let device = self.device.clone().without_autodiff();
        let needed = self.planned.largest().forward;
        let mut all = Tally::default();
        for indices in in_order(part, self.job.micro_batch()) {
            (self.tell)(Event::Evaluating {
                done: indices[0] - first,
                of: samples,
                stop,
            });
            if *stop {
                break;
            }
            let batch = data.batch(&indices);
            let size = batch.predictions();
            all.samples += batch.samples();
            let (mut value, targets) = to_device(batch, self.job.settings.dtype, &device);
            for layer in &model.layers {
                self.engine.step.make_room(needed);
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
