//! One optimizer step after another, on a model built from a description.

mod evaluation;
mod first_step;
mod parts;
mod saved;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{module::Module, optim::GradientsParams, tensor::Device};
use rekindle::{
    free_dead_nodes,
    meter::{Meter, PeakMemory, Phase, PhaseReading, PhaseRecorder},
    record::{ExchangeReading, Optimizer, RecordError, SpanReading, Update},
    reduce::SharedReading,
    sequential::Sequential,
    statistics::{Before, Statistics},
};
use rekindle_plan::{Bytes, Planner, Seconds};

use self::parts::Parts;
pub(super) use self::parts::raise;
use crate::{
    data::batch::Batch,
    engine::Engine,
    finite,
    model::{
        spec::SampleShape,
        stage::Stage,
        tie::{tie, untie},
    },
    nonfinite::NonFinite,
    optimizer::AnyOptimizer,
    record::StepRecord,
    session::Job,
    settings::OnNonFinite,
    shortage::Shortage,
    train_error::TrainError,
};

/// A model, its optimizer and its schedule.
pub(super) struct Trainer<'a> {
    job: &'a Job<'a>,
    model: Sequential<Stage>,
    optimizer: AnyOptimizer,
    engine: Engine,
    meter: Arc<dyn Meter>,
    device: Device,
    steps_done: usize,
    statistics: Statistics,
    /// What a step may take.
    budget: Option<Bytes>,
    /// Whether a step is done, with which the optimizer's state came.
    settled: bool,
}

/// The report of one optimizer step.
pub(super) struct StepReport {
    /// Loss, accuracy, time.
    pub(super) record: StepRecord,
    /// Memory by phase.
    pub(super) phases: Vec<PhaseReading>,
    /// Memory after every span of the step and after its update, if the step was [traced](Trainer::trace_next_step).
    pub(super) spans: Vec<SpanReading>,
    /// Measurements of the exchange, if [ranks](crate::ranks) share the step: the sum over all parts, with the network
    /// operations of the last.
    pub(super) exchange: Option<ExchangeReading>,
    /// Values of the step that are not finite, if the settings continue anyway.
    pub(super) nonfinite: Option<NonFinite>,
    /// A shortage in an update, which cannot be undone and used the reserve.
    pub(super) short: Option<Shortage>,
}

impl<'a> Trainer<'a> {
    /// A trainer that has done no step yet. `output` is the shape of one sample of the model's output.
    ///
    /// # Errors
    ///
    /// If the output is not one row of numbers, or one row for each token, as every loss here requires.
    pub(super) fn new(
        job: &'a Job<'a>,
        model: Sequential<Stage>,
        output: &SampleShape,
        engine: Engine,
        meter: Arc<dyn Meter>,
        device: Device,
    ) -> Result<Self, TrainError> {
        if !matches!(output.dims.len(), 1 | 2) {
            return Err(TrainError::Output {
                got: output.clone(),
            });
        }
        Ok(Self {
            optimizer: AnyOptimizer::new(job.settings).sharded(engine.step.shards()),
            statistics: Statistics::of(&model),
            engine,
            model,
            job,
            meter,
            device,
            steps_done: 0,
            budget: job.budget(),
            settled: false,
        })
    }

    /// The highest peak so far of the bytes that a budget counts.
    pub(super) fn counted_peak(&self) -> Bytes {
        self.meter.lifetime_peak().counted(self.job.count)
    }

    /// Whether parameters and statistics can still be read. They cannot after a device ran out of memory in an update.
    pub(super) fn is_readable(&self) -> bool {
        finite::first_value(&self.model()).is_ok()
    }

    /// Steps done so far.
    pub(super) fn steps_done(&self) -> usize {
        self.steps_done
    }

    /// The model, its statistics up to date.
    pub(super) fn model(&self) -> Sequential<Stage> {
        self.model.valid()
    }

    /// The factor of the next step's loss, if it is scaled.
    pub(super) fn loss_scale(&self) -> Option<f64> {
        self.optimizer.scaler.scale()
    }

    /// The engine that runs the steps.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, to be planned.
    pub(super) fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Recomputes nothing from the next step on, in as much memory as that takes.
    pub(super) fn run_plain(&mut self) -> Result<(), TrainError> {
        self.budget = None;
        Ok(self.engine.step.plan_again(None, Planner::None)?)
    }

    /// Traces the next step, which takes longer for it.
    pub(super) fn trace_next_step(&mut self) {
        self.engine.step.set_watched(true);
    }

    /// The first of parameters, running statistics and optimizer state that is not finite, if one is not.
    pub(super) fn not_finite(&self) -> Result<Option<String>, TrainError> {
        if let Some(path) = finite::first_value(&self.model())? {
            return Ok(Some(format!("`{path}`")));
        }
        let state = TrainError::caught(|| self.optimizer.not_finite())?;
        Ok(state.map(|id| format!("the optimizer's state of parameter {id}")))
    }

    /// Runs one optimizer step on batches whose shapes fit the model: a whole batch, or equal parts of one whose
    /// gradients are summed. The phases and spans are those of the last part.
    ///
    /// # Errors
    ///
    /// If the schedule or a batch does not fit the model, there is no batch, the device fails, or something is not
    /// finite and the settings stop there. The model, its statistics and the optimizer are then unchanged.
    pub(super) fn step(
        &mut self,
        parts: impl ExactSizeIterator<Item = Result<Batch, TrainError>>,
    ) -> Result<StepReport, TrainError> {
        let started = Instant::now();
        let before = self.statistics.before(&self.model);
        let rate = self.job.settings.rate_at(self.steps_done);
        let begun = self.check_first_step();
        let mut parts = match begun.and_then(|()| self.parts(parts, rate)) {
            Ok(parts) => parts,
            Err(error) => {
                self.abandon(before);
                let error = error.or_shortage();
                return Err(self.job.ranks.fail(error, || self.counted_peak()));
            }
        };
        self.engine.step.set_watched(false);

        let meter = Arc::clone(&self.meter);
        let mut after = PhaseRecorder::start(&*meter);
        let checked = self.check(&mut parts);
        let told = checked.as_ref().map(|_| parts.tally).map_err(Clone::clone);
        let told = self.job.ranks.tell(told, || self.counted_peak());
        let (tally, nonfinite) = match told.and_then(|tally| Ok((tally, checked?))) {
            Ok(told) => told,
            Err(error) => {
                drop(parts);
                self.abandon(before);
                return Err(error.or_shortage());
            }
        };
        let loss_scale = self.loss_scale();
        let left_out = |found: &&NonFinite| found.handled == OnNonFinite::Skip;
        let skipped = nonfinite.as_ref().filter(left_out);
        if let Some(found) = skipped {
            drop(parts.gradients);
            self.model = before.put_back(self.take_model());
            if found.lower_scale.is_some() {
                self.optimizer.scaler.overflowed();
            }
        } else {
            drop(before);
            if self.engine.step.update() == Update::After {
                let begun = Instant::now();
                let shared = self.update(rate, parts.gradients, parts.squares)?;
                if let (Some(shared), Some(exchange)) = (shared, &mut parts.exchange) {
                    let before = parts.spans.last().map(|last| last.done_at);
                    let until = before.unwrap_or_default() + begun.elapsed();
                    exchange.add_shared(shared, until);
                }
            }
            self.optimizer.scaler.updated();
        }
        after.end(Phase::Optimizer);

        self.steps_done += 1;
        self.settled = true;
        let short = self.shortage(parts.peak);
        let update = after.finish();
        let traced = traced_update(parts.spans.last(), update.first());
        parts.spans.extend(traced);
        parts.phases.extend(update);
        let record = StepRecord {
            step: self.steps_done,
            loss: parts.loss,
            accuracy: tally.accuracy(),
            learning_rate: rate,
            step_s: Seconds(started.elapsed().as_secs_f64()),
            loss_scale,
            skipped: skipped.is_some(),
        };
        Ok(StepReport {
            record,
            phases: parts.phases,
            spans: parts.spans,
            exchange: parts.exchange,
            nonfinite,
            short,
        })
    }

    /// Fails if there is too little memory for the update; finds values that are not finite. A step with updates in its
    /// backward pass cannot be undone and is accepted.
    fn check(&self, parts: &mut Parts) -> Result<Option<NonFinite>, TrainError> {
        if self.engine.step.update() == Update::InBackward {
            return self.nonfinite(parts);
        }
        if let Some(shortage) = self.shortage(parts.peak) {
            return Err(TrainError::Short(shortage));
        }
        let found = self.nonfinite(parts)?;
        self.check_first_update().map(|()| found)
    }

    /// An allocation that failed, or a step that took more than its budget.
    fn shortage(&self, peak: PeakMemory) -> Option<Shortage> {
        if let Some(failure) = self.meter.failure() {
            return Some(Shortage::Failed(failure));
        }
        let peak = peak.counted(self.job.count);
        let budget = self.budget.filter(|budget| peak > *budget)?;
        Some(Shortage::OverBudget { peak, budget })
    }

    /// What is not finite, where the settings go on all the same.
    fn nonfinite(&self, parts: &mut Parts) -> Result<Option<NonFinite>, TrainError> {
        let squares = self.optimizer.sum_of_squares(&self.model, &parts.gradients);
        parts.squares = squares.map(finite::read).transpose()?;
        let gradient = match parts.squares {
            Some(squares) if squares.is_finite() => None,
            _ => finite::first_gradient(&self.model, &parts.gradients)?,
        };
        if parts.loss.is_finite() && gradient.is_none() {
            return Ok(None);
        }
        let scaler = &self.optimizer.scaler;
        let lower_scale = scaler.lower().filter(|_| parts.loss.is_finite());
        let found = NonFinite {
            step: self.steps_done + 1,
            loss: parts.loss,
            gradient,
            handled: match lower_scale {
                Some(_) => OnNonFinite::Skip,
                None => self.job.settings.on_nonfinite,
            },
            loss_scale: scaler.scale(),
            lower_scale,
        };
        match found.handled {
            OnNonFinite::Stop => Err(TrainError::NonFinite(Box::new(found))),
            OnNonFinite::Skip | OnNonFinite::Continue => Ok(Some(found)),
        }
    }

    /// Updates the model, and returns the measurements of exchanging parameters between ranks that divide the updates.
    fn update(
        &mut self,
        rate: f64,
        gradients: GradientsParams,
        squares: Option<f64>,
    ) -> Result<Option<SharedReading>, RecordError> {
        // The optimizer consumes the model, so that it can update parameters in place.
        let mut model = self.take_model();
        untie(&mut model);
        let (step, largest) = (&self.engine.step, &self.engine.largest);
        let needed = match self.steps_done {
            0 => largest.first_update,
            _ => largest.update,
        };
        let make_room = || step.make_room(needed);
        let optimizer = &mut self.optimizer;
        let model = optimizer.step_by_layer(rate, model, gradients, squares, make_room);
        let (model, sent) = match optimizer.shards() {
            None => (model, Ok(None)),
            Some(shards) => {
                let (model, sent) = shards.share(model);
                let owners = shards.owners();
                let sent = sent.map_err(|error| RecordError::PartlyUpdated {
                    updated: owners.iter().filter(|(id, _)| shards.keeps(*id)).count(),
                    of: owners.len(),
                    source: Box::new(error.into()),
                });
                (model, sent.map(Some))
            }
        };
        self.model = model;
        tie(&mut self.model);
        sent
    }

    fn take_model(&mut self) -> Sequential<Stage> {
        std::mem::replace(&mut self.model, Sequential::new(Vec::new()))
    }

    /// Undoes a step that has begun.
    fn abandon(&mut self, before: Before) {
        self.engine.step.set_watched(false);
        self.model = before.put_back(self.take_model());
        // The step's nodes in burn's graph would only be freed by the next backward pass.
        free_dead_nodes(&self.device);
        self.meter.trim();
    }
}

/// The update of a step whose last span was traced.
fn traced_update(last: Option<&SpanReading>, update: Option<&PhaseReading>) -> Option<SpanReading> {
    let (last, update) = last.zip(update)?;
    Some(SpanReading {
        memory: update.memory,
        done_at: last.done_at + Duration::from_secs_f64(update.seconds_s),
    })
}
