//! Forward, loss and backward of a batch, part by part, and what the parts give together.

use burn::optim::GradientsParams;
use rekindle::{
    accumulate::Sum,
    meter::{PeakMemory, Phase, PhaseReading},
    record::{
        ExchangeReading,
        driver::{PhaseRecorder, SpanReading},
    },
    seed::StepSeed,
};

use super::Session;
use crate::{
    data::batch::Batch,
    engine::{PartOutput, step_batch},
    finite,
    nonfinite::NonFinite,
    ranks::Tally,
    run_error::RunError,
};

/// The joint results of the parts of a batch; phases and spans are those of the last part.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) gradients: GradientsParams,
    /// The sum of their squares, if known and used for clipping.
    pub(super) squares: Option<f64>,
    pub(super) loss: f64,
    /// What is not finite, if the settings continue anyway.
    pub(super) nonfinite: Option<NonFinite>,
    pub(super) tally: Tally,
    pub(super) peak: PeakMemory,
    /// Memory by phase.
    pub(super) phases: Vec<PhaseReading>,
    /// Memory after every span, if the step was traced.
    pub(super) spans: Vec<SpanReading>,
    /// Measurements of the exchange, if [ranks](crate::ranks) share the step: the sum over all parts, with the network
    /// operations of the last.
    pub(super) exchange: Option<ExchangeReading>,
}

impl Session<'_> {
    /// Runs all parts, with the update where it belongs to the backward.
    pub(super) fn run_parts(
        &mut self,
        parts: impl ExactSizeIterator<Item = Result<Batch, RunError>>,
        rate: f64,
    ) -> Result<Parts, RunError> {
        let count = parts.len();
        let scale = self.optimizer.scaler.scale().unwrap_or(1.0);
        let mut all = Parts {
            peak: self.no_peak(),
            ..Parts::default()
        };
        let (mut sum, mut correct) = (Sum::default(), None);
        for (part, batch) in parts.enumerate() {
            let batch = batch?;
            all.tally.samples += batch.samples();
            all.tally.predictions += batch.predictions();
            let run = self.progress.steps * count + part;
            let part = self.run_part(batch, run as u64, rate)?;
            raise(&mut all.peak, &part.phases);
            // One sum, not a number for each part: there may be thousands.
            let part = part.map(|counted| {
                correct = match (correct.take(), counted) {
                    (Some(before), Some(counted)) => Some(before + counted),
                    (before, counted) => before.or(counted),
                };
            });
            sum.add(&self.model, part, 1.0);
        }
        let whole = sum.mean(&self.model)?;
        all.loss = finite::read(whole.loss)? / scale;
        all.tally.add_correct(correct)?;
        all.gradients = whole.gradients;
        all.phases = whole.phases;
        all.spans = whole.spans;
        all.exchange = whole.exchange;
        Ok(all)
    }

    /// Runs one of some equal parts.
    fn run_part(&mut self, batch: Batch, run: u64, rate: f64) -> Result<PartOutput, RunError> {
        let mut before = PhaseRecorder::start(&*self.meter);
        self.engine
            .step
            .make_room(batch.bytes(self.job.settings.dtype));
        let scaler = &self.optimizer.scaler;
        let batch = step_batch(batch, self.job.settings.dtype, scaler, &self.device);
        before.end(Phase::ZeroGrad);
        let seed = StepSeed::new(self.job.settings.seed, run).of_rank(self.job.ranks.rank());
        let update = (rate, &mut self.optimizer);
        let part = self
            .engine
            .run(&mut self.model, batch, seed, update, &self.device);
        let mut part = part?;
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

/// Raises a peak to those of some phases.
pub(super) fn raise(peak: &mut PeakMemory, phases: &[PhaseReading]) {
    for PhaseReading { memory, .. } in phases {
        peak.in_use_bytes = peak.in_use_bytes.max(memory.peak_in_use_bytes);
        peak.reserved_bytes = peak.reserved_bytes.max(memory.peak_reserved_bytes);
    }
}
