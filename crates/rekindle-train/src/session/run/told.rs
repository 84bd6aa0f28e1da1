//! Builds a run's record, and the cost of the plain run.

use rekindle_plan::Bytes;

use super::{
    super::{Planned, RunError},
    Session,
};

use crate::{
    device::DeviceId,
    record::{ExchangeRecord, PeakInUse, PlainRun, PoolRecord, RUN_FORMAT, RunRecord, StageRecord},
    step_times::StepTimes,
    timeline::{TimedExchange, Timeline},
    trainer::raise,
};

/// Minimum length of a run, in plain steps, for which plain steps are measured by default: measuring takes about
/// twenty.
const WORTH_COMPARING: f64 = 200.0;

/// Plain steps that are run for comparison; the first is not counted.
const PLAIN_STEPS: usize = 6;

impl Session<'_> {
    pub(super) fn record(&self, plain: PlainRun, interrupted: bool) -> RunRecord {
        let planned = &self.planned;
        let progress = &self.progress;
        // Before the peak is read, because on the CPU the record counts too.
        let timeline = self.timeline();
        // Reading includes the last evaluation or snapshot in the peak.
        let pooled = self.meter.read().reserved_bytes.is_some();
        let peak = self.meter.lifetime_peak();
        RunRecord {
            format: RUN_FORMAT.into(),
            name: self.job.name.into(),
            device: self.device.to_string(),
            hardware: self.job.hardware.into(),
            model: self.job.model.clone(),
            settings: self.job.settings.clone(),
            param_count: planned.param_count,
            stages: stages(planned),
            update: planned.update,
            offload: planned.offload,
            exchange: self.exchange(),
            optimizer_state: planned.state,
            planner: planned.planner.clone(),
            segments: planned.segments.clone(),
            recomputes: planned.recomputes(),
            budget_bytes: planned.budget,
            count: planned.count,
            predicted_peak_bytes: planned.peak,
            measured_peak_bytes: peak.counted(planned.count),
            in_use: PeakInUse {
                predicted_bytes: planned.peak_in_use,
                measured_bytes: peak.in_use_bytes,
            },
            pools: pooled.then(|| PoolRecord {
                trims: self.trainer.engine().step.trims(),
            }),
            whole_gpu_used_bytes: whole_gpu_used(self.device),
            predicted_step_s: planned.step,
            measured_step_s: self.times.median(),
            step_range_s: self.times.range(),
            plain,
            first_loss: progress.first_loss,
            last_loss: progress.last_loss,
            steps: progress.steps,
            batch: self.job.settings.batch,
            ranks: self.job.ranks.records(),
            resumed_at: self.resumed_at,
            interrupted,
            nonfinite_steps: self.nonfinite_steps,
            overflow_steps: self.overflow_steps,
            loss_scale: self.trainer.loss_scale(),
            replans: self.replans,
            evaluation: progress.evaluation.clone(),
            best_evaluation: progress.best.clone(),
            phases: self.phases.clone(),
            growth: self.growth.found,
            timeline,
        }
    }

    /// Time that the exchange adds to a step.
    fn exchange(&self) -> Option<ExchangeRecord> {
        let predicted = self.planned.exchange?;
        Some(ExchangeRecord {
            predicted_exchange_s: predicted.taken.added(),
            measured_exchange_s: self.exchange_times.as_ref()?.median(),
            predicted,
        })
    }

    /// The timeline of the traced step, after it is done.
    fn timeline(&self) -> Option<Timeline> {
        let step = self.traced.filter(|_| !self.trace.is_empty())?;
        Some(Timeline {
            exchanges: TimedExchange::all(&self.exchanges),
            ..Timeline::new(step, &self.planned.prediction, &self.trace)
        })
    }

    pub(super) fn predicted_plain(&self) -> PlainRun {
        PlainRun {
            peak_bytes: self.planned.plain_peak,
            step_s: self.planned.plain_step,
            measured: false,
            range_s: None,
        }
    }

    /// Whether measuring plain steps in another process takes a small part of the run's own time.
    fn worth_comparing(&self) -> bool {
        let planned = &self.planned;
        let run = self.steps_here() as f64 * planned.step.0;
        planned.recomputes() && run >= WORTH_COMPARING * planned.plain_step.0
    }

    /// The plain run's cost: measured if requested or cheap, and if it fits; otherwise predicted.
    pub(super) fn plain(&mut self) -> Result<PlainRun, RunError> {
        let predicted = self.predicted_plain();
        let fits = self
            .job
            .free
            .is_none_or(|free| predicted.peak_bytes <= free);
        let elsewhere = self.job.plain_elsewhere;
        let elsewhere = elsewhere.filter(|_| self.job.compare || self.worth_comparing());
        if !fits {
            return Ok(predicted);
        }
        if let Some(plain) = elsewhere.and_then(|measure| measure()) {
            return Ok(plain);
        }
        if !self.job.compare {
            return Ok(predicted);
        }
        let samples = self.batches.step(0);
        let micro_batch = self.job.micro_batch().max(1);
        let data = self.job.train;
        let parts = || {
            let parts = samples.chunks_exact(micro_batch);
            parts.map(|samples| Ok(data.batch(samples)))
        };
        self.trainer.run_plain()?;
        let mut peak = self.trainer.no_peak();
        let mut times = StepTimes::new();
        for step in 0..PLAIN_STEPS {
            let report = self.trainer.step(parts())?;
            raise(&mut peak, &report.phases);
            times.add(report.record.step_s, step > 0);
        }
        Ok(PlainRun {
            peak_bytes: peak.counted(self.job.count),
            step_s: times.median(),
            measured: true,
            range_s: times.range(),
        })
    }
}

fn stages(planned: &Planned) -> Vec<StageRecord> {
    let stages = planned.chain.stages.iter().zip(planned.forwards.clone());
    let records = stages.map(|(stage, forwards)| StageRecord {
        name: stage.name.clone(),
        forwards,
        forward_s: stage.forward_s,
        backward_s: stage.backward_s,
        output_bytes: stage.output_bytes,
        saved_bytes: stage.saved_bytes,
        param_bytes: stage.param_bytes,
    });
    records.collect()
}

#[cfg(feature = "cuda")]
fn whole_gpu_used(device: DeviceId) -> Option<Bytes> {
    match device {
        DeviceId::Cuda(index) => {
            let memory = crate::device::nvml_memory(index).ok()?;
            Some(memory.used_bytes)
        }
        DeviceId::Cpu | DeviceId::Wgpu(_) => None,
    }
}

#[cfg(not(feature = "cuda"))]
fn whole_gpu_used(_device: DeviceId) -> Option<Bytes> {
    None
}
