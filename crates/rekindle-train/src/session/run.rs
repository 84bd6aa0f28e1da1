//! One run on one device.

mod growth;
mod replan;
mod told;

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use growth::GrowthWatch;
use rekindle_plan::{Bytes, Seconds};
use replan::is_partly_updated;

use super::{
    Job, MemoryNow, Observer, Planned, RunError, other_executor, prepare::Built, subject::Subject,
};
use crate::{
    RunDirError,
    data::{Shuffled, in_order},
    device::{DeviceId, OpenDevice},
    engine::Engine,
    fingerprint::fingerprint,
    model::tie::tie,
    record::{PhasedStep, RunRecord},
    run_dir::{Locked, Notice, RunDir, RunFiles, SnapshotEvery},
    snapshot::{Progress, Snapshot},
    step_times::StepTimes,
    tracker::Tracker,
    train_error::TrainError,
    trainer::{StepReport, Trainer},
    weights,
};
use rekindle::{
    executor::TraceEntry,
    meter::{Meter, PeakMemory},
    record::NetworkReading,
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
    /// What the network did in the traced step.
    exchanges: Vec<NetworkReading>,
    tracker: Option<Arc<Tracker>>,
    progress: Progress,
    times: StepTimes,
    /// What the exchange adds to steps, where ranks share them.
    exchange_times: Option<StepTimes>,
    resumed_at: Option<usize>,
    fingerprint: String,
    files: Option<RunFiles>,
    /// Names of the model's stages.
    stages: Vec<String>,
    /// Steps whose loss or gradients were not finite, without those that follow.
    nonfinite_steps: usize,
    /// Steps whose gradients overflowed with the loss scaled.
    overflow_steps: usize,
    subject: Subject,
    /// What the last plan was made for, where that is less than what was asked for.
    within: Option<Bytes>,
    /// Plans that were made anew for want of memory.
    replans: usize,
    growth: GrowthWatch,
    /// When the last snapshot was tried.
    tried: Instant,
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
        let ranks = &job.ranks;
        let mut times = StepTimes::new();
        let exchange_times = (!ranks.is_alone()).then(StepTimes::new);
        let opened = ranks.check(job).map_err(RunError::from);
        let opened = opened.and_then(|()| open_run_dir(job, &fingerprint, &mut times, observer));
        let (files, snapshot) = ranks.settled(opened)?;
        ranks.settled(ranks.agree(job, &fingerprint))?;
        let mut snapshot = ranks.settled(ranks.snapshot(snapshot))?;
        let progress = snapshot
            .as_ref()
            .map(|snapshot| snapshot.progress().clone())
            .unwrap_or_default();

        let built = Built::new(job, &device).and_then(|mut built| {
            if let Some(snapshot) = &mut snapshot {
                built.model = snapshot.restore(built.model)?;
            } else if let Some(path) = &job.weights {
                built.model = weights::read(built.model, path)?;
            }
            Ok(built)
        });
        let mut built = ranks.settled(built)?;
        built.model = ranks.parameters(built.model)?;
        // What was read is a tensor of its own in each place.
        tie(&mut built.model);
        // Before the measurement, which counts as held what a tracker takes.
        let tracker = job
            .track
            .then(|| Arc::new(built.tracker(job, Arc::clone(&meter))));
        let subject = Subject::of(job, built, &device, &meter, observer);
        let (built, mut subject) = ranks.settled(subject)?;
        let engine = subject.plan(job, &job.schedule).and_then(|planned| {
            observer.planned(&planned);
            if let Some(free) = job.free.filter(|free| planned.peak > *free) {
                return Err(RunError::NotEnough {
                    peak: planned.peak,
                    free,
                    total: job.total,
                });
            }
            let engine = subject.engine(job, &planned).ok_or_else(other_executor)?;
            Ok((planned, engine))
        });
        let (planned, engine) = ranks.settled(engine)?;
        ranks.note(|record| {
            record.batch = job.part().len();
            record.budget_bytes = planned.budget;
            record.predicted_peak_bytes = planned.peak;
        });
        meter.keep_reserve(reserve(&engine));
        let on_gpu = meter.read().reserved_bytes.is_some();
        let Built {
            model,
            shape,
            batches,
            labels,
        } = built;
        let trainer = Trainer::new(
            model,
            shape.output(),
            engine,
            settings.clone(),
            Arc::clone(&meter),
            device,
        );
        // Only now: the plan counts the optimizer's state apart from what was in use while it was measured.
        let resumed_at = snapshot.is_some().then_some(progress.steps);
        let trainer = trainer.map_err(RunError::from).and_then(|trainer| {
            let trainer = trainer
                .bounded(planned.budget, planned.count, planned.peak)
                .among(ranks.clone(), subject.shards(&planned));
            Ok(match &mut snapshot {
                Some(snapshot) => trainer.resumed(progress.steps, snapshot)?,
                None => trainer,
            })
        });
        let trainer = ranks.settled(trainer)?;
        Ok(Self {
            job,
            device: id,
            meter,
            batches,
            planned,
            trainer,
            phases: Vec::new(),
            // On a GPU, what phases change is compared with it where memory grows.
            traced: (files.is_some() || on_gpu)
                .then(|| settings.steps.min(progress.steps + PHASED_STEPS + 1)),
            trace: Vec::new(),
            exchanges: Vec::new(),
            tracker,
            progress,
            times,
            exchange_times,
            resumed_at,
            fingerprint,
            files,
            stages: labels.into_iter().map(|label| label.name).collect(),
            nonfinite_steps: 0,
            overflow_steps: 0,
            subject,
            within: None,
            replans: 0,
            // The traced step is the last of them.
            growth: GrowthWatch::new(PHASED_STEPS + 1),
            tried: Instant::now(),
        })
    }

    /// Trains until the last step, or until the observer stops it.
    pub(super) fn run(mut self, observer: &mut dyn Observer) -> Result<RunRecord, RunError> {
        let steps = self.job.settings.steps;
        // A run that was stopped right after a step left this to be done.
        let mut interrupted = false;
        if self.job.eval.is_some() && self.evaluation_is_due() {
            interrupted = self.evaluate(observer)?.is_none();
            self.save(observer)?;
        }
        while self.trainer.steps_done() < steps && !interrupted {
            let report = self.step(observer)?;
            let done = self.trainer.steps_done();
            if self.traced == Some(done) {
                self.trace = report.trace;
                let exchange = report.exchange.as_ref();
                self.exchanges = exchange.map_or_else(Vec::new, |one| one.operations.clone());
                self.growth.predicted = self.predicted_changes()?;
            }

            // The last step seen replaces the one seen before it.
            self.phases.truncate(PHASED_STEPS);
            self.phases.push(PhasedStep {
                step: done,
                phases: report.phases,
            });
            if self.growth.stepped(done, &*self.meter)
                && let Some(growth) = &self.growth.found
            {
                observer.grows(growth);
            }
            let memory = self.memory_now();
            if let Some(found) = &report.nonfinite {
                match found.lower_scale {
                    Some(_) => self.overflow_steps += 1,
                    None => self.nonfinite_steps += 1,
                }
                observer.nonfinite(found);
            }
            let asked = observer.stepped(&report.record, memory).is_break();
            interrupted = self.job.ranks.stops(asked);
            if !report.moments.is_empty() {
                observer.tracked(&report.moments);
            }
            self.progress.stepped(&report.record);
            let counts = self.steps_here() > 1 && self.traced != Some(done);
            self.times.add(report.record.step_s, counts);
            if let (Some(times), Some(took)) = (&mut self.exchange_times, &report.exchange) {
                times.add(Seconds(took.added().as_secs_f64()), counts);
            }
            if let Some(files) = &mut self.files {
                files.stepped(&report.record, &mut |notice| observer.notified(notice));
            }

            let evaluate = self.evaluation_is_due() && !interrupted;
            let best = match evaluate {
                true => self.evaluate(observer)?,
                false => Some(false),
            };
            interrupted |= best.is_none();
            if best == Some(true) || self.snapshot_is_due()? || interrupted || done == steps {
                self.save(observer)?;
            } else if evaluate {
                self.write_record(observer)?;
            }
        }
        self.finish(interrupted, observer)
    }

    fn memory_now(&self) -> MemoryNow {
        let reading = self.meter.read();
        let now = PeakMemory {
            in_use_bytes: reading.in_use_bytes,
            reserved_bytes: reading.reserved_bytes,
            context_bytes: self.meter.context_bytes(),
        };
        let peak = self.meter.lifetime_peak();
        let count = self.planned.count;
        MemoryNow {
            in_use: reading.in_use_bytes,
            counted: now.counted(count),
            counted_peak: peak.counted(count),
            peak,
        }
    }

    fn snapshot_is_due(&self) -> Result<bool, RunError> {
        let due = match self.job.snapshot_every {
            SnapshotEvery::Steps(every) => self.trainer.steps_done().is_multiple_of(every),
            SnapshotEvery::Time(time) => self.tried.elapsed() >= time,
        };
        match self.trainer.is_sharded() {
            // Ranks have clocks of their own.
            true => self.job.ranks.said_by_first(due),
            false => Ok(due),
        }
    }

    /// Runs the next step, with smaller plans where there is too little memory.
    fn step(&mut self, observer: &mut dyn Observer) -> Result<StepReport, RunError> {
        loop {
            let next = self.trainer.steps_done() + 1;
            let samples = self.batches.step(next - 1);
            let samples = &samples[self.job.part()];
            let parts = samples.chunks_exact(self.job.micro_batch().max(1));
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
                    if let Some(shortage) = &report.short
                        && let Err(error) = self.plan_smaller(shortage.clone(), observer)
                    {
                        return Err(self.ended(error, true, observer));
                    }
                    if let Some(by) = self.trainer.engine().take_growth() {
                        self.planned_by_step(by, observer);
                    }
                    return Ok(report);
                }
                Err(error) => {
                    let whole = !is_partly_updated(&error);
                    let again = self.again(error, observer);
                    if let Err(error) = self.job.ranks.settled(again) {
                        return Err(self.ended(error, whole, observer));
                    }
                }
            }
        }
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
        let last = self.progress.evaluation.as_ref();
        let due = settings
            .eval_every
            .is_some_and(|every| done.is_multiple_of(every));
        (due || done == settings.steps) && done > 0 && last.is_none_or(|last| last.step < done)
    }

    /// Whether no evaluation before was as good; `None` if the observer breaks it off.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<Option<bool>, RunError> {
        let Some(data) = self.job.eval else {
            return Ok(Some(false));
        };
        let mut goes_on = ControlFlow::Continue(());
        let part = self.job.ranks.part(data.len());
        let (first, samples) = (part.start, part.len());
        let batches = in_order(part, self.job.micro_batch()).map_while(|indices| {
            goes_on = observer.evaluating(indices[0] - first, samples);
            goes_on.is_continue().then(|| data.batch(&indices))
        });
        let evaluation = self.trainer.evaluate(batches);
        if self.job.ranks.stops(goes_on.is_break()) {
            return Ok(None);
        }
        let evaluation = match evaluation {
            Ok(evaluation) => evaluation,
            Err(error) => {
                self.meter.trim();
                let ended = match error.or_shortage() {
                    TrainError::Short(shortage) => self.out_of_memory(shortage, None),
                    error => self.at_stage(error),
                };
                let ended = self.job.ranks.settled(Err(ended));
                return ended.map_err(|error| self.ended(error, true, observer));
            }
        };
        observer.evaluated(&evaluation);
        if let Some(files) = &mut self.files {
            files.evaluated(&evaluation, &mut |notice| observer.notified(notice));
        }
        Ok(Some(self.progress.evaluated(&evaluation)))
    }

    /// Takes a snapshot, but of a state that is not finite; then writes the record.
    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), RunError> {
        self.tried = Instant::now();
        let (trainer, sharded) = (&self.trainer, self.trainer.is_sharded());
        if self.files.is_none() && !sharded {
            return Ok(());
        }
        let mut found = trainer.not_finite()?;
        if sharded {
            found = self.job.ranks.first(found)?;
        }
        if let Some(what) = found {
            observer.snapshot_withheld(trainer.steps_done(), &what);
            return self.write_record(observer);
        }
        if let Some(files) = &mut self.files {
            files.take_snapshot(
                &self.fingerprint,
                &self.progress,
                |to| trainer.save(to),
                &mut |notice| observer.notified(notice),
            );
        }
        if sharded {
            trainer.end_save().map_err(RunError::from)?;
        }
        self.write_record(observer)
    }

    /// Writes the record of a run that goes on.
    fn write_record(&mut self, observer: &mut dyn Observer) -> Result<(), RunError> {
        if self.files.is_none() {
            return Ok(());
        }
        let record = self.record(self.predicted_plain(), true)?;
        if let Some(files) = &mut self.files {
            files.write_record(&record, &mut |notice| observer.notified(notice));
        }
        Ok(())
    }

    /// What a later run continues from is written before an error ends the run: a snapshot, where the model is `whole`. Files
    /// that cannot be written are not the error to tell.
    fn ended(&mut self, error: RunError, whole: bool, observer: &mut dyn Observer) -> RunError {
        let ranks = &self.job.ranks;
        let saves = match self.trainer.is_sharded() {
            // That takes all ranks.
            true => ranks.ends_with_others() && ranks.all(whole).unwrap_or(false),
            false => whole,
        };
        let _ = match saves {
            true => self.save(observer),
            false => self.write_record(observer),
        };
        error
    }

    fn finish(
        mut self,
        interrupted: bool,
        observer: &mut dyn Observer,
    ) -> Result<RunRecord, RunError> {
        if let Some(files) = &mut self.files {
            files.write_weights(&self.trainer.model(), &mut |notice| {
                observer.notified(notice);
            });
        }
        // Taken before the comparison, which is no part of the run.
        let mut record = self.record(self.predicted_plain(), interrupted)?;
        if !interrupted {
            record.plain = self.plain()?;
        }
        if let Some(files) = &mut self.files {
            files.write_record(&record, &mut |notice| observer.notified(notice));
        }
        self.job.ranks.finished();
        Ok(record)
    }
}

/// What is kept back for an allocation that fails: enough to end the action that is under way.
fn reserve(engine: &Engine) -> Bytes {
    const LEAST: Bytes = Bytes(1 << 20);
    engine.largest_need() + LEAST
}

/// The run's files, if it leaves any, and the snapshot that it goes on from. Times of steps that were done are added to
/// `times`.
fn open_run_dir(
    job: &Job<'_>,
    fingerprint: &str,
    times: &mut StepTimes,
    observer: &mut dyn Observer,
) -> Result<(Option<RunFiles>, Option<Snapshot>), RunError> {
    let (locked, snapshot) = match &job.run_dir {
        None => return Ok((None, None)),
        Some(RunDir::New(folder)) => (Locked::new_run(folder)?, None),
        Some(RunDir::Resume(folder)) => {
            let (locked, snapshot) = Locked::resumed(folder, |damaged| {
                observer.notified(&Notice::Damaged(damaged));
            })?;
            match &snapshot {
                Some(snapshot) => snapshot.check(fingerprint, job.settings.steps)?,
                None => observer.notified(&Notice::BeginsAgain(folder)),
            }
            (locked, snapshot)
        }
    };
    let steps = job.settings.steps;
    let done = snapshot
        .as_ref()
        .map_or(0, |snapshot| snapshot.progress().steps);
    // A run that was stopped right after its last step has left the rest to be done.
    if let Some(run_dir) = &job.run_dir
        && done == steps
        && locked.has_finished(steps)
    {
        return Err(RunDirError::Finished {
            path: run_dir.folder().to_path_buf(),
            steps,
        }
        .into());
    }
    let files = locked.open(job.keep_snapshots, done, |step| {
        times.add(step.step_s, step.step > 1);
    })?;
    Ok((Some(files), snapshot))
}
