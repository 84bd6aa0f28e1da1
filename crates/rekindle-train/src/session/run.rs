//! One run on one device.

mod growth;
mod replan;
mod saving;
mod start;
mod told;

use std::{sync::Arc, thread, time::Instant};

use growth::GrowthWatch;
use rekindle_plan::{Bytes, Seconds};

use super::{Event, Job, MemoryNow, Planned, RunError, Tell};
use crate::{
    data::{Shuffled, ahead::Ahead, in_order},
    device::DeviceId,
    engine::Engine,
    progress::Progress,
    record::{PhasedStep, RunRecord},
    run_dir::RunFiles,
    step_times::StepTimes,
    tracker::TrackedPass,
    train_error::TrainError,
    trainer::{StepReport, Trainer},
};
use rekindle::{
    meter::{Meter, PeakMemory},
    record::{NetworkReading, SpanReading},
};

/// Number of tracked steps, if requested: the optimizer's state is allocated in the first.
const TRACKED_STEPS: usize = 3;

/// Steps whose phases are recorded from the start; the last step's are too. The step after them is traced.
const PHASED_STEPS: usize = 3;

pub(super) struct Session<'a> {
    job: &'a Job<'a>,
    tell: &'a mut Tell<'a>,
    device: DeviceId,
    meter: Arc<dyn Meter>,
    batches: Shuffled,
    planned: Planned,
    trainer: Trainer<'a>,
    phases: Vec<PhasedStep>,
    /// The step to trace, and its trace after it is done.
    traced: Option<usize>,
    trace: Vec<SpanReading>,
    /// The network operations of the traced step.
    exchanges: Vec<NetworkReading>,
    progress: Progress,
    times: StepTimes,
    /// Time that the exchange adds to steps, if ranks share them.
    exchange_times: Option<StepTimes>,
    resumed_at: Option<usize>,
    fingerprint: String,
    files: Option<RunFiles>,
    /// Steps whose loss or gradients were not finite, without those that follow.
    nonfinite_steps: usize,
    /// Steps whose gradients overflowed with the loss scaled.
    overflow_steps: usize,
    /// The budget of the last plan, which may be less than the requested one, and its peak.
    within: Option<Bytes>,
    planned_peak: Bytes,
    /// Number of new plans made because of too little memory.
    replans: usize,
    growth: GrowthWatch,
    /// When the last snapshot was tried.
    tried: Instant,
}

impl<'a> Session<'a> {
    /// Trains until the last step, or until it is told to stop.
    pub(super) fn run(self) -> Result<RunRecord, RunError> {
        let (data, batches, part) = (self.job.train, self.batches, self.job.part());
        let (parts, samples) = (self.parts(), self.job.micro_batch());
        let build = move |number| {
            let first = part.start + number % parts * samples;
            data.batch(&batches.step(number / parts)[first..first + samples])
        };
        thread::scope(|scope| {
            let count = self.job.settings.steps * parts;
            let mut ahead = Ahead::start(scope, count, build)?;
            self.run_on(&mut ahead)
        })
    }

    /// Parts of a step's batch.
    fn parts(&self) -> usize {
        self.job.part().len() / self.job.micro_batch().max(1)
    }

    fn run_on(mut self, ahead: &mut Ahead) -> Result<RunRecord, RunError> {
        let steps = self.job.settings.steps;
        // A run that was stopped directly after a step has not done this evaluation.
        let mut interrupted = false;
        if self.job.eval.is_some() && self.evaluation_is_due() {
            interrupted = self.evaluate()?.is_none();
            self.save()?;
        }
        while self.trainer.steps_done() < steps && !interrupted {
            let report = self.step(ahead)?;
            let done = self.trainer.steps_done();
            if self.traced == Some(done) {
                self.trace = report.spans;
                let exchange = report.exchange.as_ref();
                self.exchanges = exchange.map_or_else(Vec::new, |one| one.operations.clone());
            }

            // The last step seen replaces the one seen before it.
            self.phases.truncate(PHASED_STEPS);
            self.phases.push(PhasedStep {
                step: done,
                phases: report.phases,
            });
            let memory = self.memory_now();
            if let Some(growth) = self.growth.stepped(done, memory.in_use) {
                (self.tell)(Event::Grows(growth));
            }
            if let Some(found) = &report.nonfinite {
                match found.lower_scale {
                    Some(_) => self.overflow_steps += 1,
                    None => self.nonfinite_steps += 1,
                }
                (self.tell)(Event::NonFinite(found));
            }
            let mut asked = false;
            (self.tell)(Event::Stepped {
                step: &report.record,
                memory,
                stop: &mut asked,
            });
            interrupted = self.job.ranks.stops(asked);
            self.progress.stepped(&report.record);
            let counts = self.steps_here() > 1 && self.traced != Some(done);
            self.times.add(report.record.step_s, counts);
            if let (Some(times), Some(took)) = (&mut self.exchange_times, &report.exchange) {
                times.add(Seconds(took.added().as_secs_f64()), counts);
            }
            if let Some(files) = &mut self.files {
                files.stepped(&report.record, self.tell);
            }

            let evaluate = self.evaluation_is_due() && !interrupted;
            let best = match evaluate {
                true => self.evaluate()?,
                false => Some(false),
            };
            interrupted |= best.is_none();
            if best == Some(true) || self.snapshot_is_due()? || interrupted || done == steps {
                self.save()?;
            } else if evaluate {
                self.write_record();
            }
        }
        self.finish(interrupted)
    }

    fn memory_now(&self) -> MemoryNow {
        let reading = self.meter.read();
        let now = PeakMemory {
            in_use_bytes: reading.in_use_bytes,
            reserved_bytes: reading.reserved_bytes,
            context_bytes: self.meter.context_bytes(),
        };
        let peak = self.meter.lifetime_peak();
        let count = self.job.count;
        MemoryNow {
            in_use: reading.in_use_bytes,
            counted: now.counted(count),
            counted_peak: peak.counted(count),
            peak,
        }
    }

    /// Runs the next step, with smaller plans if there is too little memory.
    fn step(&mut self, ahead: &mut Ahead) -> Result<StepReport, RunError> {
        loop {
            let next = self.trainer.steps_done() + 1;
            let parts = self.parts();
            let parts = (0..parts).map(|part| ahead.take((next - 1) * parts + part));
            let tracked = self.job.track && self.steps_here() < TRACKED_STEPS;
            if tracked || self.traced == Some(next) {
                self.trainer.trace_next_step();
            }
            match self.trainer.step(parts) {
                Ok(mut report) => {
                    // What is held between steps is the same after each of them.
                    let waits = Instant::now();
                    ahead.wait();
                    report.record.step_s += Seconds(waits.elapsed().as_secs_f64());
                    if tracked {
                        // Before another plan is made, for the steps to come.
                        let changes = self.trainer.engine().step.changes();
                        let chain = &self.planned.staged.chain;
                        let passes = TrackedPass::all(next, changes, &report.spans, chain);
                        (self.tell)(Event::Tracked(&passes));
                    }
                    if let Some(shortage) = &report.short
                        && let Err(error) = self.plan_smaller(shortage.clone())
                    {
                        return Err(self.ended(error, true));
                    }
                    if let Some(by) = self.trainer.engine().step.take_growth() {
                        self.planned_by_step(by);
                    }
                    return Ok(report);
                }
                Err(error) => {
                    let whole = !error.is_partly_updated();
                    let again = self.again(error);
                    if let Err(error) = self.job.ranks.settled(again) {
                        return Err(self.ended(error, whole));
                    }
                }
            }
        }
    }

    /// Steps done since the run was started or resumed.
    fn steps_here(&self) -> usize {
        self.trainer.steps_done() - self.resumed_at.unwrap_or(0)
    }

    /// Adds the batch number and the stage name to the error of a value that is not finite.
    fn at_stage(&self, error: TrainError) -> RunError {
        if let TrainError::NonFinite(found) = error {
            let (step, per_epoch) = (found.step - 1, self.batches.steps_per_epoch());
            let stage = found.gradient.as_ref().map(|(stage, _)| *stage);
            return RunError::NonFinite {
                epoch: step / per_epoch + 1,
                batch: step % per_epoch + 1,
                stage: stage.and_then(|stage| self.trainer.engine().stages.get(stage).cloned()),
                found,
            };
        }
        error.into()
    }

    /// Whether an evaluation is due and was not made yet.
    fn evaluation_is_due(&self) -> bool {
        let settings = self.job.settings;
        let done = self.trainer.steps_done();
        let last = self.progress.evaluation.as_ref();
        let due = settings
            .eval_every
            .is_some_and(|every| done.is_multiple_of(every));
        (due || done == settings.steps) && done > 0 && last.is_none_or(|last| last.step < done)
    }

    /// Evaluates, and returns whether this is the best evaluation so far; `None` if it is told to stop.
    fn evaluate(&mut self) -> Result<Option<bool>, RunError> {
        let Some(data) = self.job.eval else {
            return Ok(Some(false));
        };
        let mut stop = false;
        let part = self.job.ranks.part(data.len());
        let (first, samples) = (part.start, part.len());
        let batches = in_order(part, self.job.micro_batch()).map_while(|indices| {
            (self.tell)(Event::Evaluating {
                done: indices[0] - first,
                of: samples,
                stop: &mut stop,
            });
            (!stop).then(|| data.batch(&indices))
        });
        let evaluation = self.trainer.evaluate(batches);
        if self.job.ranks.stops(stop) {
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
                return ended.map_err(|error| self.ended(error, true));
            }
        };
        (self.tell)(Event::Evaluated(&evaluation));
        if let Some(files) = &mut self.files {
            files.evaluated(&evaluation, self.tell);
        }
        Ok(Some(self.progress.evaluated(&evaluation)))
    }

    fn finish(mut self, interrupted: bool) -> Result<RunRecord, RunError> {
        if let Some(files) = &mut self.files {
            files.write_weights(&self.trainer.model(), self.tell);
        }
        // Made before the comparison, which is not part of the run.
        let mut record = self.record(None, interrupted);
        if !interrupted {
            record.plain = self.plain()?;
        }
        if let Some(files) = &mut self.files {
            files.write_record(&record, self.tell);
            files.ended(self.tell);
        }
        self.job.ranks.finished();
        Ok(record)
    }
}

/// The reserve for a failing allocation: enough to finish the current action.
fn reserve(engine: &Engine) -> Bytes {
    const LEAST: Bytes = Bytes(1 << 20);
    engine.largest.any + LEAST
}
