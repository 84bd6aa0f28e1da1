//! Builds a run's record, and measures plain steps in turns with the run's own.

use rekindle::meter::PeakMemory;
use rekindle_plan::{Bytes, Planner};

use super::{
    super::{Event, RunError, job::PlainSteps},
    Session,
    parts::raise,
};
use crate::{
    device::{DeviceId, resident_peak},
    record::{Measured, PoolRecord, RUN_FORMAT, Resident, RunRecord, Turn},
    step_times::StepTimes,
    timeline::Timeline,
};

/// Minimum length of a run, in plain steps, for which plain steps are measured by default: measuring takes about
/// forty.
const WORTH_COMPARING: f64 = 400.0;

/// Turns of a comparison, and steps of each kind in a turn; the first of them is not counted.
const TURNS: usize = 3;
const TURN_STEPS: usize = 3;

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
            turns: Vec::new(),
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

    /// Steps by the plan and plain ones in turns, if requested or cheap, and if the plain ones fit; of one rank alone, as each
    /// rank would decide by its own free memory.
    pub(super) fn turns(&mut self) -> Vec<Turn> {
        let mut turns = Vec::new();
        let peak = self.planned.summary.plain_peak;
        let within = self.budget.is_some_and(|budget| peak <= budget);
        let elsewhere = self.job.plain_elsewhere.filter(|_| !within);
        if !self.job.ranks.is_alone()
            || !(self.job.compare || elsewhere.is_some() && self.worth_comparing())
        {
            return turns;
        }
        // Another process takes its peak besides what this one holds.
        self.meter.release();
        let free = elsewhere.map_or_else(|| self.left(), |_| self.free_now());
        if free.is_none_or(|free| peak <= free)
            && let Err(error) = self.take_turns(elsewhere, &mut turns)
            && turns.is_empty()
        {
            let told = format!("not compared with plain steps: {error}");
            (self.tell)(Event::Noticed(&told));
        }
        turns
    }

    /// Adds turns, until one fails. Plain steps in this process run by another plan, without the budget.
    fn take_turns(
        &mut self,
        elsewhere: Option<PlainSteps<'_>>,
        turns: &mut Vec<Turn>,
    ) -> Result<(), RunError> {
        let budget = self.budget;
        for _ in 0..TURNS {
            let planned = self.few_steps()?;
            if let Some(measure) = elsewhere {
                let Some(plain) = measure(TURN_STEPS) else {
                    break;
                };
                turns.push(Turn { planned, plain });
                continue;
            }
            self.budget = None;
            self.engine.step.plan_again(None, Planner::None)?;
            let plain = self.few_steps()?;
            turns.push(Turn { planned, plain });
            self.budget = budget;
            if let Some(own) = &self.planned.staged.order {
                let budget = self.planned.summary.budget;
                self.engine.step.plan_again(budget, own)?;
            }
        }
        Ok(())
    }

    /// What a few steps on the first batch take.
    fn few_steps(&mut self) -> Result<Measured, RunError> {
        let (job, batches) = (self.job, self.batches);
        let batch = |part| Ok(job.train.batch(&batches.samples(0, job.places(part))));
        let (mut peak, mut times) = (self.no_peak(), StepTimes::new());
        for step in 0..TURN_STEPS {
            let (record, done) = self.attempt((0..job.settings.parts()).map(batch))?;
            raise(&mut peak, &done.phases);
            times.add(record.step_s, step > 0);
        }
        Ok(self.measured(peak, &times))
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
