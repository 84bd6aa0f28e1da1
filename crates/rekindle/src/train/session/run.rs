//! One run on one device.

use std::{ops::ControlFlow, sync::Arc};

use rekindle_plan::Bytes;

use super::{
    Job, MemoryNow, Observer, Planned, RunError, other_executor, prepare::Built, subject::Subject,
};
use crate::{
    data::{Shuffled, in_order},
    device::{DeviceId, OpenDevice},
    executor::TraceEntry,
    meter::Meter,
    train::{
        RunDirError,
        fingerprint::fingerprint,
        record::{
            PeakInUse, PhasedStep, PlainRun, PoolRecord, RUN_FORMAT, RunRecord, StageRecord,
            median_step_time,
        },
        run_dir::{RunDir, RunFiles, read_record},
        snapshot::{Progress, Snapshot},
        timeline::Timeline,
        tracker::Tracker,
        trainer::{TrainError, Trainer},
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
        let engine = subject.engine(job, &planned).ok_or_else(other_executor)?;
        let Built {
            model,
            shape,
            batches,
            ..
        } = built;
        let mut trainer = Trainer::new(
            model,
            shape.output(),
            engine,
            settings.clone(),
            Arc::clone(&meter),
            device,
        )?;
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
        })
    }

    /// Trains until the last step, or until the observer stops it.
    pub(super) fn run(mut self, observer: &mut dyn Observer) -> Result<RunRecord, RunError> {
        let steps = self.job.settings.steps;
        // A run that was stopped right after a step left this to be done.
        let mut interrupted = false;
        if self.job.eval.is_some() && self.evaluation_is_due() {
            interrupted = self.evaluate(observer)?.is_break();
            self.save()?;
        }
        while self.trainer.steps_done() < steps && !interrupted {
            let samples = self.batches.step(self.trainer.steps_done());
            let parts = samples.chunks_exact(self.job.settings.micro_batch().max(1));
            let parts = parts.map(|samples| self.job.train.batch(samples));
            let trace = self.traced == Some(self.trainer.steps_done() + 1);
            if trace {
                self.trainer.trace_next_step();
            }
            if let Some(tracker) = &self.tracker
                && self.steps_here() < TRACKED_STEPS
            {
                self.trainer.track_next_step(Arc::clone(tracker));
            }
            let report = self
                .trainer
                .step(parts)
                .map_err(|error| self.at_stage(error))?;
            let done = self.trainer.steps_done();
            if trace {
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
                interrupted = self.evaluate(observer)?.is_break();
            }
            let save = match self.job.snapshot_every {
                Some(every) => done.is_multiple_of(every),
                None => evaluate,
            };
            if save || interrupted || done == steps {
                self.save()?;
            }
        }
        self.finish(interrupted)
    }

    /// Steps done since the run was started or resumed.
    fn steps_here(&self) -> usize {
        self.trainer.steps_done() - self.resumed_at.unwrap_or(0)
    }

    /// The error with the name of the stage that it is about.
    fn at_stage(&self, error: TrainError) -> RunError {
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

    /// Evaluates, unless the observer breaks it off.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<ControlFlow<()>, RunError> {
        let Some(data) = self.job.eval else {
            return Ok(ControlFlow::Continue(()));
        };
        let mut goes_on = ControlFlow::Continue(());
        let batches = in_order(data.len(), self.job.settings.micro_batch()).map_while(|indices| {
            goes_on = observer.evaluating(indices[0], data.len());
            goes_on.is_continue().then(|| data.batch(&indices))
        });
        let evaluation = self.trainer.evaluate(batches)?;
        if goes_on.is_break() {
            return Ok(goes_on);
        }
        observer.evaluated(&evaluation);
        self.progress.evaluations.push(evaluation);
        if let Some(files) = &self.files {
            files.write_record(&self.record(self.predicted_plain(), true)?)?;
        }
        Ok(goes_on)
    }

    fn save(&self) -> Result<(), RunError> {
        if let Some(files) = &self.files {
            files.write_snapshot(&self.fingerprint, &self.progress, |to| {
                self.trainer.save(to)
            })?;
        }
        Ok(())
    }

    fn finish(mut self, interrupted: bool) -> Result<RunRecord, RunError> {
        // Taken before the comparison, which is no part of the run.
        let mut record = self.record(self.predicted_plain(), interrupted)?;
        if !interrupted {
            record.plain = self.plain()?;
        }
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
