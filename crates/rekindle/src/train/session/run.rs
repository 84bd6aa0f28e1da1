//! One run on one device.

use std::sync::Arc;

use rekindle_plan::{Bytes, PlanError};

use super::{
    Job, MemoryNow, Observer, OutOfMemory, Planned, PlannedAgain, RunError, other_executor,
    prepare::Built, subject::Subject,
};
use crate::{
    data::{Shuffled, in_order},
    device::{DeviceId, OpenDevice, probe},
    executor::TraceEntry,
    meter::Meter,
    train::{
        RunDirError,
        engine::Engine,
        fingerprint::fingerprint,
        record::{
            PeakInUse, PhasedStep, PlainRun, PoolRecord, RUN_FORMAT, RunRecord, StageRecord,
            median_step_time,
        },
        run_dir::{RunDir, RunFiles, read_record},
        shortage::Shortage,
        snapshot::{Progress, Snapshot},
        timeline::Timeline,
        tracker::Tracker,
        trainer::{StepReport, TrainError, Trainer},
    },
};

/// Steps that are tracked, where that was asked for: the optimizer's state comes in the first.
const TRACKED_STEPS: usize = 3;

/// Steps whose phases are recorded from the start; the last step's are too. The step after them is traced.
const PHASED_STEPS: usize = 3;

pub(super) struct Session<'a> {
    job: &'a Job<'a>,
    device: DeviceId,
    meter: Arc<dyn Meter>,
    batches: Shuffled,
    planned: Planned,
    trainer: Trainer,
    phases: Vec<PhasedStep>,
    /// The step that is to be traced, and its trace once it is done.
    traced: Option<usize>,
    trace: Vec<TraceEntry>,
    tracker: Option<Arc<Tracker>>,
    progress: Progress,
    resumed_at: Option<usize>,
    fingerprint: String,
    files: Option<RunFiles>,
    /// Names of the model's stages.
    stages: Vec<String>,
    /// Steps whose loss or gradients were not finite.
    nonfinite_steps: usize,
    subject: Subject,
    /// What the last plan was made for, where that is less than what was asked for.
    within: Option<Bytes>,
    /// Plans that were made anew for want of memory.
    replans: usize,
}

impl<'a> Session<'a> {
    /// Builds the model, measures it and makes the plan.
    pub(super) fn prepare(
        job: &'a Job<'a>,
        id: DeviceId,
        OpenDevice { device, meter }: OpenDevice,
        observer: &mut dyn Observer,
    ) -> Result<Self, RunError> {
        let settings = job.settings;
        let fingerprint = fingerprint(job.model, settings, job.train);
        let (files, mut snapshot) = open_run_dir(job, &fingerprint)?;
        let progress = snapshot
            .as_mut()
            .map(Snapshot::take_progress)
            .unwrap_or_default();

        let mut built = Built::new(job, &device)?;
        if let Some(snapshot) = &mut snapshot {
            built.model = snapshot.restore(built.model)?;
        }
        // Before the measurement, which counts as held what a tracker takes.
        let tracker = job
            .track
            .then(|| Arc::new(built.tracker(job, Arc::clone(&meter))));
        let (built, mut subject) = Subject::of(job, built, &device, &meter, observer)?;
        let planned = subject.plan(job, &job.schedule)?;
        observer.planned(&planned);
        if let Some(free) = job.free.filter(|free| planned.peak > *free) {
            return Err(RunError::NotEnough {
                peak: planned.peak,
                free,
                total: job.total,
            });
        }
        let engine = subject.engine(job, &planned).ok_or_else(other_executor)?;
        meter.keep_reserve(reserve(&engine));
        let Built {
            model,
            shape,
            batches,
            labels,
        } = built;
        let mut trainer = Trainer::new(
            model,
            shape.output(),
            engine,
            settings.clone(),
            Arc::clone(&meter),
            device,
        )?
        .bounded(planned.budget, planned.count, planned.peak);
        // Only now: the plan counts the optimizer's state apart from what was in use while it was measured.
        let resumed_at = snapshot.is_some().then_some(progress.history.len());
        if let Some(snapshot) = &mut snapshot {
            trainer = trainer.resumed(progress.history.len(), snapshot)?;
        }
        Ok(Self {
            job,
            device: id,
            meter,
            batches,
            planned,
            trainer,
            phases: Vec::new(),
            traced: files.is_some().then(|| {
                settings
                    .steps
                    .min(progress.history.len() + PHASED_STEPS + 1)
            }),
            trace: Vec::new(),
            tracker,
            progress,
            resumed_at,
            fingerprint,
            files,
            stages: labels.into_iter().map(|label| label.name).collect(),
            nonfinite_steps: 0,
            subject,
            within: None,
            replans: 0,
        })
    }

    /// Trains until the last step, or until the observer stops it.
    pub(super) fn run(mut self, observer: &mut dyn Observer) -> Result<RunRecord, RunError> {
        let steps = self.job.settings.steps;
        // A run that was stopped right after a step left this to be done.
        if self.job.eval.is_some() && self.evaluation_is_due() {
            self.evaluate(observer)?;
            self.save(observer)?;
        }
        let mut interrupted = false;
        while self.trainer.steps_done() < steps && !interrupted {
            let report = self.step(observer)?;
            let done = self.trainer.steps_done();
            if self.traced == Some(done) {
                self.trace = report.trace;
            }

            // The last step seen replaces the one seen before it.
            self.phases.truncate(PHASED_STEPS);
            self.phases.push(PhasedStep {
                step: done,
                phases: report.phases,
            });
            let memory = MemoryNow {
                in_use: self.meter.read().in_use_bytes,
                peak: self.meter.lifetime_peak(),
            };
            if let Some(found) = &report.nonfinite {
                self.nonfinite_steps += 1;
                observer.nonfinite(found);
            }
            interrupted = observer.stepped(&report.record, memory).is_break();
            if !report.moments.is_empty() {
                observer.tracked(&report.moments);
            }
            if let Some(files) = &mut self.files {
                files.stepped(&report.record)?;
            }
            self.progress.history.push(report.record);

            let evaluate = self.evaluation_is_due() && !interrupted;
            if evaluate {
                self.evaluate(observer)?;
            }
            let save = match self.job.snapshot_every {
                Some(every) => done.is_multiple_of(every),
                None => evaluate,
            };
            if save || interrupted || done == steps {
                self.save(observer)?;
            }
        }
        self.finish(interrupted)
    }

    /// Runs the next step, with smaller plans where there is too little memory.
    fn step(&mut self, observer: &mut dyn Observer) -> Result<StepReport, RunError> {
        loop {
            let next = self.trainer.steps_done() + 1;
            let samples = self.batches.step(next - 1);
            let parts = samples.chunks_exact(self.job.settings.micro_batch().max(1));
            let parts = parts.map(|samples| self.job.train.batch(samples));
            if self.traced == Some(next) {
                self.trainer.trace_next_step();
            }
            if let Some(tracker) = &self.tracker
                && self.steps_here() < TRACKED_STEPS
            {
                self.trainer.track_next_step(Arc::clone(tracker));
            }
            match self.trainer.step(parts) {
                Ok(report) => {
                    // In the update, which cannot be taken back and got what was kept in reserve.
                    if let Some(failure) = self.meter.failure() {
                        self.plan_smaller(Shortage::Failed(failure), observer)?;
                    }
                    if let Some(by) = self.trainer.engine().take_growth() {
                        self.planned_by_step(by, observer);
                    }
                    return Ok(report);
                }
                Err(TrainError::Short(shortage)) => self.plan_smaller(shortage, observer)?,
                Err(error) => return Err(self.ended_by(error, observer)),
            }
        }
    }

    /// Has another plan run the next step, which takes less memory.
    fn plan_smaller(
        &mut self,
        shortage: Shortage,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        // What failed is forgotten; planning may need a reserve as well.
        self.meter.keep_reserve(reserve(self.trainer.engine()));
        let before = self.within.or(self.planned.budget);
        let (peak, beside) = (self.trainer.planned_peak(), self.trainer.grown_by());
        let planned = match shortage.next_budget(before, peak, beside) {
            Some(budget) => {
                let planned = self.subject.plan_smaller(self.job, budget);
                planned.map(|planned| (budget, planned)).map_err(Some)
            }
            None => Err(None),
        };
        let (budget, planned) = match planned {
            Ok(planned) => planned,
            Err(Some(RunError::Plan(PlanError::Infeasible { smallest, .. }))) => {
                return Err(self.out_of_memory(shortage, Some(smallest), observer));
            }
            Err(None) => return Err(self.out_of_memory(shortage, None, observer)),
            Err(Some(error)) => return Err(error),
        };
        observer.planned_again(&PlannedAgain {
            step: self.trainer.steps_done() + 1,
            shortage: &shortage,
            before: before.unwrap_or(peak),
            budget,
            planned: &planned,
        });
        let engine = self.subject.engine(self.job, &planned);
        let engine = engine.ok_or_else(other_executor)?;
        self.meter.keep_reserve(reserve(&engine));
        self.trainer.run_by(engine, planned.peak);
        self.within = Some(budget);
        self.adopt(planned);
        Ok(())
    }

    /// Tells of a step that was planned again by itself, within the same budget.
    fn planned_by_step(&mut self, by: Bytes, observer: &mut dyn Observer) {
        let budget = self.within.or(self.planned.budget);
        let planned = self.subject.planned_by_step(self.job);
        if let (Some(budget), Some(planned)) = (budget, planned) {
            observer.planned_again(&PlannedAgain {
                step: self.trainer.steps_done(),
                shortage: &Shortage::Grown { by, budget },
                before: budget,
                budget,
                planned: &planned,
            });
            self.adopt(planned);
        }
    }

    /// Takes a plan that was made anew for the record.
    fn adopt(&mut self, planned: Planned) {
        self.replans += 1;
        // A timeline is one plan's.
        self.trace.clear();
        let next = self.trainer.steps_done() + 2;
        self.traced = self.traced.map(|_| next.min(self.job.settings.steps));
        // The record's peaks are the whole run's.
        self.planned = Planned {
            budget: self.planned.budget,
            peak: planned.peak.max(self.planned.peak),
            peak_in_use: planned.peak_in_use.max(self.planned.peak_in_use),
            ..planned
        };
    }

    fn out_of_memory(
        &self,
        shortage: Shortage,
        smallest: Option<Bytes>,
        observer: &mut dyn Observer,
    ) -> RunError {
        let error = OutOfMemory::new(
            self.trainer.steps_done() + 1,
            shortage,
            self.meter.read(),
            probe(self.device).ok(),
            &self.planned,
            smallest,
        );
        self.leave(observer);
        RunError::OutOfMemory(Box::new(error))
    }

    /// Steps done since the run was started or resumed.
    fn steps_here(&self) -> usize {
        self.trainer.steps_done() - self.resumed_at.unwrap_or(0)
    }

    /// The error with the name of the stage that it is about.
    fn at_stage(&self, error: TrainError) -> RunError {
        if let TrainError::NonFinite(found) = error {
            let (step, per_epoch) = (found.step - 1, self.batches.steps_per_epoch());
            let stage = found.gradient.as_ref().map(|(stage, _)| *stage);
            return RunError::NonFinite {
                epoch: step / per_epoch + 1,
                batch: step % per_epoch + 1,
                stage: stage.and_then(|stage| self.stages.get(stage).cloned()),
                found,
            };
        }
        let TrainError::Step(step) = &error else {
            return error.into();
        };
        match step.stage().map(|stage| &self.planned.chain.stages[stage]) {
            Some(stage) => RunError::Stage {
                name: stage.name.clone(),
                source: step.clone(),
            },
            None => error.into(),
        }
    }

    /// Whether the steps done call for an evaluation that was not made yet.
    fn evaluation_is_due(&self) -> bool {
        let settings = self.job.settings;
        let done = self.trainer.steps_done();
        let last = self.progress.evaluations.last();
        let due = settings
            .eval_every
            .is_some_and(|every| done.is_multiple_of(every));
        (due || done == settings.steps) && done > 0 && last.is_none_or(|last| last.step < done)
    }

    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), RunError> {
        let Some(data) = self.job.eval else {
            return Ok(());
        };
        let batches = in_order(data.len(), self.job.settings.micro_batch())
            .map(|indices| data.batch(&indices));
        let evaluation = self.trainer.evaluate(batches)?;
        observer.evaluated(&evaluation);
        self.progress.evaluations.push(evaluation);
        if let Some(files) = &self.files {
            files.write_record(&self.record(self.predicted_plain(), true)?)?;
        }
        Ok(())
    }

    fn ended_by(&self, error: TrainError, observer: &mut dyn Observer) -> RunError {
        self.leave(observer);
        self.at_stage(error)
    }

    /// Leaves what a later run goes on from, before an error ends this one: that is the error to tell, not another one of
    /// its files.
    fn leave(&self, observer: &mut dyn Observer) {
        let _ = self.save(observer);
        let record = self.record(self.predicted_plain(), true);
        if let (Some(files), Ok(record)) = (&self.files, record) {
            let _ = files.write_record(&record);
        }
    }

    /// Takes a snapshot, but of a state that is not finite.
    fn save(&self, observer: &mut dyn Observer) -> Result<(), RunError> {
        if let Some(files) = &self.files {
            if let Some(what) = self.trainer.not_finite()? {
                observer.snapshot_withheld(self.trainer.steps_done(), &what);
                return Ok(());
            }
            files.write_snapshot(&self.fingerprint, &self.progress, |to| {
                self.trainer.save(to)
            })?;
        }
        Ok(())
    }

    fn finish(mut self, interrupted: bool) -> Result<RunRecord, RunError> {
        // Taken before the comparison, which is no part of the run.
        let mut record = self.record(self.predicted_plain(), interrupted)?;
        record.plain = self.plain()?;
        if let Some(files) = &self.files {
            files.write_record(&record)?;
        }
        Ok(record)
    }

    fn record(&self, plain: PlainRun, interrupted: bool) -> Result<RunRecord, RunError> {
        let planned = &self.planned;
        let history = &self.progress.history;
        // Before the peak is read: on the processor a record counts too.
        let timeline = self.timeline()?;
        let traced = timeline.as_ref().map(|timeline| timeline.step);
        Ok(RunRecord {
            format: RUN_FORMAT.into(),
            name: self.job.name.into(),
            device: self.device.to_string(),
            hardware: self.job.hardware.into(),
            model: self.job.model.clone(),
            settings: self.job.settings.clone(),
            param_count: planned.param_count,
            stages: stages(planned),
            executor: self.job.executor,
            planner: planned.planner.clone(),
            segments: planned.segments.clone(),
            recomputes: planned.recomputes(),
            budget_bytes: planned.budget,
            count: planned.count,
            predicted_peak_bytes: planned.peak,
            measured_peak_bytes: self.meter.lifetime_peak().counted(planned.count),
            in_use: PeakInUse {
                predicted_bytes: planned.peak_in_use,
                measured_bytes: self.meter.lifetime_peak().in_use_bytes,
            },
            pools: self.meter.read().reserved_bytes.map(|_| PoolRecord {
                trims: self.trainer.trims(),
            }),
            whole_gpu_used_bytes: whole_gpu_used(self.device),
            predicted_step_s: planned.step,
            measured_step_s: median_step_time(history, traced),
            plain,
            first_loss: history.first().map_or(f64::NAN, |step| step.loss),
            last_loss: history.last().map_or(f64::NAN, |step| step.loss),
            steps: self.trainer.steps_done(),
            batch: self.job.settings.batch,
            resumed_at: self.resumed_at,
            interrupted,
            nonfinite_steps: self.nonfinite_steps,
            replans: self.replans,
            evaluations: self.progress.evaluations.clone(),
            phases: self.phases.clone(),
            timeline,
            history: history.clone(),
        })
    }

    /// The traced step, once it is done.
    fn timeline(&self) -> Result<Option<Timeline>, RunError> {
        let Some(step) = self.traced.filter(|_| !self.trace.is_empty()) else {
            return Ok(None);
        };
        Ok(Some(self.trainer.engine().timeline(step, &self.trace)?))
    }

    fn predicted_plain(&self) -> PlainRun {
        PlainRun {
            peak_bytes: self.planned.plain_peak,
            step_s: self.planned.plain_step,
            measured: false,
        }
    }

    /// The plain run's cost: measured where that was asked for and fits, else predicted.
    fn plain(&mut self) -> Result<PlainRun, RunError> {
        let predicted = self.predicted_plain();
        let fits = self
            .job
            .free
            .is_none_or(|free| predicted.peak_bytes <= free);
        if !self.job.compare || !fits {
            return Ok(predicted);
        }
        let samples = self.batches.step(0);
        let micro_batch = self.job.settings.micro_batch().max(1);
        let data = self.job.train;
        let parts = || {
            let parts = samples.chunks_exact(micro_batch);
            parts.map(|samples| data.batch(samples))
        };
        let (peak, step_s) = self.trainer.plain_steps(parts)?;
        Ok(PlainRun {
            peak_bytes: peak.counted(self.planned.count),
            step_s,
            measured: true,
        })
    }
}

/// What is kept back for an allocation that fails: enough to end the action that is under way.
fn reserve(engine: &Engine) -> Bytes {
    const LEAST: Bytes = Bytes(1 << 20);
    engine.largest_need() + LEAST
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
            let memory = crate::meter::nvml_memory(index as u32).ok()?;
            Some(memory.used_bytes)
        }
        DeviceId::Cpu | DeviceId::Wgpu(_) => None,
    }
}

#[cfg(not(feature = "cuda"))]
fn whole_gpu_used(_device: DeviceId) -> Option<Bytes> {
    None
}

/// The run's files, if it leaves any, and the snapshot that it goes on from.
fn open_run_dir(
    job: &Job<'_>,
    fingerprint: &str,
) -> Result<(Option<RunFiles>, Option<Snapshot>), RunError> {
    Ok(match &job.run_dir {
        None => (None, None),
        Some(RunDir::New(folder)) => (Some(RunFiles::create(folder)?), None),
        Some(RunDir::Resume(folder)) => {
            let snapshot = RunFiles::snapshot(folder)?;
            snapshot.check(fingerprint, job.settings.steps)?;
            // A run that was stopped right after its last step has left the rest to be done.
            let finished = read_record(folder)
                .is_ok_and(|record| record.steps == job.settings.steps && !record.interrupted);
            if finished {
                return Err(RunDirError::Finished {
                    path: folder.clone(),
                    steps: job.settings.steps,
                }
                .into());
            }
            let files = RunFiles::open(folder, &snapshot.progress().history)?;
            (Some(files), Some(snapshot))
        }
    })
}
