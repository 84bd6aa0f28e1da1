//! Builds a run's record, and the cost of the plain run.

use rekindle::meter::PeakMemory;
use rekindle_plan::{Bytes, Planner};

use super::{super::RunError, Session, parts::raise};
use crate::{
    device::{DeviceId, resident_peak},
    record::{Measured, PoolRecord, RUN_FORMAT, Resident, RunRecord},
    step_times::StepTimes,
    timeline::Timeline,
};

/// Minimum length of a run, in plain steps, for which plain steps are measured by default: measuring takes about
/// twenty.
const WORTH_COMPARING: f64 = 200.0;

/// Plain steps that are run for comparison; the first is not counted.
const PLAIN_STEPS: usize = 6;

impl Session<'_> {
    pub(super) fn record(&self, interrupted: bool) -> RunRecord {
        let planned = &self.planned;
        let progress = &self.progress;
        // Before the peak is read, because on the CPU the record counts too.
        let timeline = self.timeline();
        // Reading includes the last evaluation or snapshot in the peak.
        let pooled = self.meter.read().reserved_bytes.is_some();
        let peak = self.meter.lifetime_peak();
        let hardware = self.job.device.map(|device| device.name.clone());
        RunRecord {
            format: RUN_FORMAT.into(),
            name: self.job.name.into(),
            device: self.id.to_string(),
            hardware: hardware.unwrap_or_default(),
            model: self.job.model.clone(),
            settings: self.job.settings.clone(),
            param_count: self.param_count,
            plan: self.plan.clone(),
            stages: planned.staged.chain.stages.clone(),
            count: self.job.count,
            measured: self.measured(peak, &self.times),
            measured_exchange_s: self.exchange_times.as_ref().map(StepTimes::median),
            pools: pooled.then(|| PoolRecord {
                trims: self.engine.step.trims(),
            }),
            whole_gpu_used_bytes: whole_gpu_used(self.id),
            resident: self.beside_heap.and_then(|beside_bytes| {
                Some(Resident {
                    beside_bytes,
                    peak_bytes: resident_peak()?,
                })
            }),
            plain: None,
            first_loss: progress.first_loss,
            last_loss: progress.last_loss,
            steps: progress.steps,
            batch: self.job.settings.batch,
            ranks: self.job.ranks.records(),
            resumed_at: self.resumed_at,
            interrupted,
            nonfinite_steps: self.nonfinite_steps,
            overflow_steps: self.overflow_steps,
            loss_scale: self.optimizer.scaler.scale(),
            replans: self.replans,
            evaluation: progress.evaluation.clone(),
            best_evaluation: progress.best.clone(),
            phases: self.phases.clone(),
            growth: self.growth.found,
            timeline,
        }
    }

    /// The timeline of the traced step, after it is done.
    fn timeline(&self) -> Option<Timeline> {
        let step = self.traced.filter(|_| !self.trace.is_empty())?;
        let plan = &self.planned.staged;
        Some(Timeline::new(step, plan, &self.trace, &self.exchanges))
    }

    /// Whether measuring plain steps in another process takes a small part of the run's own time.
    fn worth_comparing(&self) -> bool {
        let plan = &self.planned.summary;
        let run = self.steps_here() as f64 * plan.predicted_time.0;
        plan.repeated > 0 && run >= WORTH_COMPARING * plan.plain_time.0
    }

    /// The plain run's cost, measured if requested or cheap, and if it fits; of one rank alone, as each rank would decide by
    /// its own free memory.
    pub(super) fn plain(&mut self) -> Result<Option<Measured>, RunError> {
        if !self.job.ranks.is_alone() {
            return Ok(None);
        }
        let plain_peak = self.planned.summary.plain_peak;
        let short = |free: Option<Bytes>| free.is_some_and(|free| plain_peak > free);
        let elsewhere = self.job.plain_elsewhere;
        let elsewhere = elsewhere.filter(|_| self.job.compare || self.worth_comparing());
        let plain = elsewhere.and_then(|measure| {
            // Another process takes its peak besides what this one holds.
            self.meter.release();
            (!short(self.free_now())).then(measure)?
        });
        if plain.is_some() || !self.job.compare || short(self.left()) {
            return Ok(plain);
        }
        let samples = self.batches.step(0);
        let micro_batch = self.job.micro_batch().max(1);
        let data = self.job.train;
        let parts = || {
            let parts = samples.chunks_exact(micro_batch);
            parts.map(|samples| Ok(data.batch(samples)))
        };
        self.budget = None;
        self.engine.step.plan_again(None, Planner::None)?;
        let mut peak = self.no_peak();
        let mut times = StepTimes::new();
        for step in 0..PLAIN_STEPS {
            let (record, done) = self.attempt(parts())?;
            raise(&mut peak, &done.phases);
            times.add(record.step_s, step > 0);
        }
        Ok(Some(self.measured(peak, &times)))
    }

    fn measured(&self, peak: PeakMemory, times: &StepTimes) -> Measured {
        Measured {
            peak: peak.counted(self.job.count),
            in_use: peak.in_use_bytes,
            step: times.median(),
            range: times.range(),
        }
    }
}

fn whole_gpu_used(device: DeviceId) -> Option<Bytes> {
    match device {
        #[cfg(feature = "cuda")]
        DeviceId::Cuda(index) => Some(Bytes(crate::device::nvml_memory(index).ok()?.used)),
        _ => None,
    }
}
