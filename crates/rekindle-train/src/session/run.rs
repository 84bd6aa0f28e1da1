//! One run on one device: the training loop.
//!
//! `start.rs` begins it, `replan.rs` runs each step, with other plans where memory is short, `step.rs` tries one, `parts.rs` runs the
//! parts of its batch; `evaluation.rs`, `saving.rs` and `growth.rs` are what happens between steps, `told.rs` is the record.

mod evaluation;
mod growth;
mod parts;
mod replan;
mod saving;
mod start;
mod step;
mod told;

use std::{sync::Arc, thread, time::Instant};

use burn::{module::Module, tensor::Device};
use growth::GrowthWatch;
use rekindle_plan::{Bytes, Seconds};

use super::{Event, Job, MemoryNow, Planned, RunError, Tell};
use crate::{
    data::{Shuffled, ahead::Ahead},
    device::DeviceId,
    engine::Engine,
    model::stage::Stage,
    optimizer::AnyOptimizer,
    progress::Progress,
    record::{PhasedStep, RunRecord, Turn},
    run_dir::RunFiles,
    step_times::StepTimes,
};
use rekindle::{
    meter::{Meter, PeakMemory},
    record::{
        PlanSummary, TimedExchange,
        driver::{SpanReading, Statistics},
    },
    sequential::Sequential,
};

/// Steps whose phases are recorded from the start; the last step's are too. The step after them is traced.
const PHASED_STEPS: usize = 3;

pub(super) struct Session<'a> {
    job: &'a Job<'a>,
    tell: &'a mut Tell<'a>,
    id: DeviceId,
    device: Device,
    meter: Arc<dyn Meter>,
    batches: Shuffled,
    /// The plan by which steps run now.
    planned: Planned,
    /// As the record has it: with the first plan's budget, and the highest predicted peaks of all.
    plan: PlanSummary,
    engine: Engine,
    model: Sequential<Stage>,
    param_count: u64,
    /// What the process has in RAM besides its heap, on the processor.
    beside_heap: Option<Bytes>,
    statistics: Statistics,
    optimizer: AnyOptimizer,
    /// What a step may take.
    budget: Option<Bytes>,
    /// Whether a step is done, with which the optimizer's state came.
    settled: bool,
    phases: Vec<PhasedStep>,
    /// The step to trace, and its trace after it is done.
    traced: Option<usize>,
    trace: Vec<SpanReading>,
    /// The network operations of the traced step.
    exchanges: Vec<TimedExchange>,
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
    /// Number of new plans made because of too little memory.
    replans: usize,
    growth: GrowthWatch,
    /// When the last snapshot was tried.
    tried: Instant,
}

impl<'a> Session<'a> {
    /// Trains until the last step, or until it is told to stop.
    pub(super) fn run(self) -> Result<RunRecord, RunError> {
        let (job, batches, parts) = (self.job, self.batches, self.job.settings.parts());
        let build = move |number| {
            let samples = batches.samples(number / parts, job.places(number % parts));
            job.train.batch(&samples)
        };
        thread::scope(|scope| {
            let count = self.job.settings.steps * parts;
            let mut ahead = Ahead::start(scope, count, build)?;
            self.run_on(&mut ahead)
        })
    }

    fn run_on(mut self, ahead: &mut Ahead) -> Result<RunRecord, RunError> {
        let steps = self.job.settings.steps;
        // A run that was stopped directly after a step has not done this evaluation.
        let mut interrupted = false;
        if self.job.eval.is_some() && self.evaluation_is_due() {
            interrupted = self.evaluate()?.is_none();
            self.save()?;
        }
        while self.progress.steps < steps && !interrupted {
            let (record, parts) = self.step(ahead)?;
            let done = self.progress.steps;
            if self.traced == Some(done) {
                self.trace = parts.spans;
                let exchange = parts.exchange.as_ref();
                self.exchanges = exchange.map_or_else(Vec::new, |one| one.operations.clone());
            }

            // The last step seen replaces the one seen before it.
            self.phases.truncate(PHASED_STEPS);
            self.phases.push(PhasedStep {
                step: done,
                phases: parts.phases,
            });
            let memory = self.memory_now();
            if let Some(growth) = self.growth.stepped(done, memory.in_use) {
                (self.tell)(Event::Grows(growth));
            }
            if let Some(found) = &parts.nonfinite {
                match found.lower_scale {
                    Some(_) => self.overflow_steps += 1,
                    None => self.nonfinite_steps += 1,
                }
                (self.tell)(Event::NonFinite(found));
            }
            let mut asked = false;
            (self.tell)(Event::Stepped {
                step: &record,
                memory,
                stop: &mut asked,
            });
            interrupted = self.job.ranks.stops(asked);
            let counts = self.steps_here() > 1 && self.traced != Some(done);
            self.times.add(record.step_s, counts);
            if let (Some(times), Some(took)) = (&mut self.exchange_times, &parts.exchange) {
                times.add(Seconds(took.added.as_secs_f64()), counts);
            }
            if let Some(files) = &mut self.files {
                files.stepped(&record, self.tell);
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
        MemoryNow {
            in_use: reading.in_use_bytes,
            counted: now.counted(self.job.count),
            counted_peak: self.counted_peak(),
        }
    }

    /// Steps done since the run was started or resumed.
    fn steps_here(&self) -> usize {
        self.progress.steps - self.resumed_at.unwrap_or(0)
    }

    fn finish(mut self, interrupted: bool) -> Result<RunRecord, RunError> {
        if let Some(files) = &mut self.files {
            files.write_weights(&self.model.valid(), self.tell);
        }
        // Made before the comparison, which is not part of the run.
        let mut record = self.record(interrupted);
        if !interrupted {
            record.turns = self.turns();
            record.plain = Turn::middle(&record.turns);
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
fn reserve(planned: &Planned) -> Bytes {
    const LEAST: Bytes = Bytes(1 << 20);
    planned.largest().any + LEAST
}
