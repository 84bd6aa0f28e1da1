//! One optimizer step after another, on a model built from a description.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Int, Tensor},
};
use rekindle_plan::{Action, Bytes, Seconds};

use super::{
    engine::{Engine, Part, StepBatch},
    finite,
    loss::TargetTensor,
    loss_scale::LossScaler,
    nonfinite::NonFinite,
    optimizer::AnyOptimizer,
    ranks::{Ranks, Tally},
    record::{EvalRecord, StepRecord},
    run_dir_error::RunDirError,
    settings::{OnNonFinite, TrainSettings},
    shortage::Shortage,
    snapshot::{Snapshot, SnapshotWriter},
    step_times::StepTimes,
    tracker::{TrackedMoment, Tracker},
    train_error::TrainError,
};
use crate::{
    data::batch::{Batch, Inputs, Targets},
    model::{
        spec::{ElementKind, SampleShape},
        stage::Stage,
        tie::{tie, untie},
        value::Value,
    },
};
use rekindle::statistics::{Before, Statistics};
use rekindle::{
    dtype::Dtype,
    executor::TraceEntry,
    free_dead_nodes,
    layer::Layer,
    meter::{Count, Meter, PeakMemory, Phase, PhaseReading, PhaseRecorder},
    record::{ExchangeReading, Optimizer, RecordError, Update},
    reduce::{Shards, SharedReading},
    seed::StepSeed,
    sequential::Sequential,
};

/// Steps that recompute nothing, run for comparison.
const PLAIN_STEPS: usize = 6;

/// Bytes of a buffer by which a device is tried: fewer than any device refuses for their size alone.
const TRIAL_BYTES: u64 = 128 << 20;

/// A model, its optimizer and its schedule.
pub struct Trainer {
    model: Sequential<Stage>,
    optimizer: AnyOptimizer,
    engine: Engine,
    settings: TrainSettings,
    meter: Arc<dyn Meter>,
    device: Device,
    steps_done: usize,
    tracker: Option<Arc<Tracker>>,
    statistics: Statistics,
    bound: Bound,
    ranks: Ranks,
}

/// What a step may take, and what was in use before it was there.
#[derive(Default)]
struct Bound {
    budget: Option<Bytes>,
    count: Count,
    /// The plan's peak.
    peak: Bytes,
    /// In use after the first step, with the optimizer's state.
    settled: Option<Bytes>,
}

/// Share of a budget, and bytes, that a process may come to hold beside its steps without another plan: plans leave them.
const UNNOTICED: (f64, u64) = (0.005, 1 << 16);

/// What one optimizer step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Loss, accuracy, time.
    pub record: StepRecord,
    /// Memory by phase.
    pub phases: Vec<PhaseReading>,
    /// Memory after every action of the schedule, where the step was [traced](Trainer::trace_next_step).
    pub trace: Vec<TraceEntry>,
    /// What the exchange took, where [ranks](crate::ranks) share the step: of all parts together, with what the network did
    /// in the last.
    pub exchange: Option<ExchangeReading>,
    /// What came and what went, where the step was tracked.
    pub moments: Vec<TrackedMoment>,
    /// What of the step is not finite, where the settings go on all the same.
    pub nonfinite: Option<NonFinite>,
    /// What was short in an update, which cannot be taken back and got what was kept in reserve.
    pub short: Option<Shortage>,
}

/// What forward, loss and backward of a batch's parts give together.
#[derive(Default)]
struct Parts {
    gradients: GradientsParams,
    loss: f64,
    tally: Tally,
    peak: PeakMemory,
    phases: Vec<PhaseReading>,
    trace: Vec<TraceEntry>,
    exchange: Option<ExchangeReading>,
}

/// What is known of a step's gradients before the update.
#[derive(Default)]
struct Checked {
    /// What is not finite, where the settings go on all the same.
    nonfinite: Option<NonFinite>,
    /// The sum of the gradients' squares, where they are clipped by it.
    squares: Option<f64>,
}

impl Trainer {
    /// A trainer that has done no step yet. `output` is the shape of one sample of the model's output.
    ///
    /// # Errors
    ///
    /// If the output is not one row of numbers, or one for each token, which every loss here wants.
    pub(super) fn new(
        model: Sequential<Stage>,
        output: &SampleShape,
        engine: Engine,
        settings: TrainSettings,
        meter: Arc<dyn Meter>,
        device: Device,
    ) -> Result<Self, TrainError> {
        if output.kind != ElementKind::Float || !matches!(output.dims.len(), 1 | 2) {
            return Err(TrainError::Output {
                got: output.clone(),
            });
        }
        Ok(Self {
            optimizer: AnyOptimizer::new(&settings),
            statistics: Statistics::of(&model),
            engine,
            model,
            settings,
            meter,
            device,
            steps_done: 0,
            tracker: None,
            bound: Bound::default(),
            ranks: Ranks::default(),
        })
    }

    /// Writes the model and the optimizer's state.
    ///
    /// Updates of statistics that wait are merged first, as the next forward would: nothing that is computed changes.
    pub(super) fn save(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        let saved = TrainError::caught(|| {
            to.model(&self.model())?;
            self.optimizer.save(to)
        });
        // The values were copied by way of pinned memory.
        self.meter.trim();
        saved.map_err(io::Error::other)?
    }

    /// Goes on after `steps_done` steps, with a model that was [restored](Snapshot::restore) already.
    pub(super) fn resumed(
        self,
        steps_done: usize,
        from: &mut Snapshot,
    ) -> Result<Self, RunDirError> {
        let optimizer = self.optimizer.restored(from, &self.device)?;
        Ok(Self {
            optimizer,
            steps_done,
            ..self
        })
    }

    /// Goes back to a snapshot of the same run.
    pub(super) fn go_back(&mut self, to: &mut Snapshot) -> Result<(), RunDirError> {
        // Its state goes before the model's values and the earlier state come.
        self.optimizer = AnyOptimizer::new(&self.settings);
        self.model = to.restore(self.take_model())?;
        // What was read is a tensor of its own in each place.
        tie(&mut self.model);
        self.optimizer = AnyOptimizer::new(&self.settings).restored(to, &self.device)?;
        self.steps_done = to.progress().steps;
        Ok(())
    }

    /// Bounds steps by a budget, which counts these bytes; the plan's peak is `peak`.
    pub(super) fn bounded(self, budget: Option<Bytes>, count: Count, peak: Bytes) -> Self {
        let bound = Bound {
            budget,
            count,
            peak,
            settled: None,
        };
        Self { bound, ..self }
    }

    /// Shares steps and evaluations with other ranks, and by `shards` the optimizer's state.
    pub(super) fn among(self, ranks: Ranks, shards: Option<Shards>) -> Self {
        let optimizer = self.optimizer.sharded(shards);
        Self {
            ranks,
            optimizer,
            ..self
        }
    }

    /// Whether a snapshot takes all ranks.
    pub(super) fn is_sharded(&self) -> bool {
        self.optimizer.shards().is_some()
    }

    /// Ends [`save`](Self::save) on rank 0, which it may have failed or not; on other ranks, takes part in it.
    pub(super) fn end_save(&self) -> Result<(), RecordError> {
        let ended = self.optimizer.end_save();
        self.meter.trim();
        Ok(ended?)
    }

    /// Runs another plan, whose peak is `peak`, from the next step on.
    pub(super) fn run_by(&mut self, engine: Engine, peak: Bytes) {
        self.engine = engine;
        self.bound.peak = peak;
    }

    /// The peak of the plan that runs now.
    pub(super) fn planned_peak(&self) -> Bytes {
        self.bound.peak
    }

    /// What is in use beside what the plan counts, where the plan cannot know.
    pub(super) fn grown_by(&self) -> Bytes {
        match self.bound.settled {
            Some(settled) if !self.engine.counts_growth() => {
                self.meter.read().in_use_bytes - settled
            }
            _ => Bytes::ZERO,
        }
    }

    /// Fails where what is in use beside the step leaves too little of the budget.
    fn check_room(&self) -> Result<(), TrainError> {
        let by = self.grown_by();
        let noticed = |budget: Bytes| (budget.0 as f64 * UNNOTICED.0) as u64 + UNNOTICED.1;
        match self.bound.budget {
            Some(budget) if by.0 > noticed(budget) && self.bound.peak + by > budget => {
                Err(TrainError::Short(Shortage::Grown { by, budget }))
            }
            _ => Ok(()),
        }
    }

    /// An allocation that failed, or a step that took more than its budget.
    fn shortage(&self, parts: &Parts) -> Option<Shortage> {
        if let Some(failure) = self.meter.failure() {
            return Some(Shortage::Failed(failure));
        }
        let peak = PeakMemory {
            context_bytes: self.meter.context_bytes(),
            ..parts.peak
        };
        let peak = peak.counted(self.bound.count);
        let budget = self.bound.budget.filter(|budget| peak > *budget)?;
        Some(Shortage::OverBudget { peak, budget })
    }

    /// Fails where a device has no room for the first update, in which the optimizer's state comes: an update that has begun
    /// cannot be taken back.
    fn check_first_update(&self) -> Result<(), TrainError> {
        if self.bound.settled.is_some() || self.meter.read().reserved_bytes.is_none() {
            return Ok(());
        }
        self.meter.trim();
        let device = self.device.clone().without_autodiff();
        let mut left = self.engine.first_update().0;
        let mut held = Vec::new();
        while left > 0 {
            let part = left.min(TRIAL_BYTES);
            let values = part.div_ceil(size_of::<f32>() as u64) as usize;
            held.push(Tensor::<1>::empty([values], &device));
            left -= part;
        }
        let had = held
            .iter()
            .try_for_each(|part| finite::read(part.clone().slice(0..1)).map(drop));
        drop(held);
        self.meter.trim();
        had
    }

    /// Whether parameters and statistics can still be read. Where a device ran out of memory in an update, they cannot.
    pub(super) fn is_readable(&self) -> bool {
        finite::first_value(&self.model.valid()).is_ok()
    }

    /// Steps done so far.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        self.steps_done
    }

    /// The model, its statistics up to date.
    pub(super) fn model(&self) -> Sequential<Stage> {
        self.model.valid()
    }

    /// What the next step's loss is multiplied by, where it is scaled.
    pub(super) fn loss_scale(&self) -> Option<f64> {
        self.optimizer.scaler().scale()
    }

    /// What runs the steps.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Traces the next step, which takes longer for it.
    pub fn trace_next_step(&mut self) {
        self.engine.trace(true, &*self.meter);
    }

    /// Notes in the next step which blocks come and go, action by action.
    pub(super) fn track_next_step(&mut self, tracker: Arc<Tracker>) {
        self.engine.track(Some(Arc::clone(&tracker)));
        self.tracker = Some(tracker);
    }

    /// The first of parameters, running statistics and optimizer state that is not finite, if one is not.
    pub(super) fn not_finite(&self) -> Result<Option<String>, TrainError> {
        if let Some(path) = finite::first_value(&self.model.valid())? {
            return Ok(Some(format!("`{path}`")));
        }
        let state = TrainError::caught(|| self.optimizer.not_finite())?;
        Ok(state.map(|id| format!("the optimizer's state of parameter {id}")))
    }

    /// Runs one optimizer step on batches whose shapes fit the model: one, or equal parts of one whose gradients add
    /// up. The phases and the trace are those of the last part.
    ///
    /// # Errors
    ///
    /// If the schedule or a batch does not fit the model, there is no batch, the device fails, or something is not finite
    /// and the settings stop there. The model, its statistics and the optimizer are then what they were.
    pub fn step(
        &mut self,
        parts: impl ExactSizeIterator<Item = Batch>,
    ) -> Result<StepReport, TrainError> {
        let started = Instant::now();
        self.check_room()?;
        if let Some(tracker) = &self.tracker {
            tracker.start(self.steps_done + 1);
        }
        let before = self.statistics.before(&self.model);
        let rate = self
            .settings
            .learning_rate
            .at(self.steps_done, self.settings.steps);
        let in_backward = self.engine.update() == Update::InBackward;
        let room = match in_backward {
            true => self.check_first_update(),
            false => Ok(()),
        };
        let room = match self.bound.settled {
            // The first step that ranks run together: none is to begin it alone.
            None => {
                let room = room.map(|()| Tally::default());
                self.ranks.tell(room, || self.counted_peak()).map(drop)
            }
            Some(_) => room,
        };
        let mut parts = match room.and_then(|()| self.parts(parts, rate)) {
            Ok(parts) => parts,
            Err(error) => {
                self.abandon(before);
                let error = error.or_shortage();
                return Err(self.ranks.fail(error, || self.counted_peak()));
            }
        };
        self.engine.trace(false, &*self.meter);

        let meter = Arc::clone(&self.meter);
        let mut after = PhaseRecorder::start(Some(&*meter));
        let checked = match in_backward {
            // What was done cannot be taken back: the step stands.
            true => self.check(&parts),
            false => match self.shortage(&parts) {
                Some(shortage) => Err(TrainError::Short(shortage)),
                None => self
                    .check(&parts)
                    .and_then(|checked| self.check_first_update().map(|()| checked)),
            },
        };
        let (told, checked) = match checked {
            Ok(checked) => (Ok(parts.tally), Some(checked)),
            Err(error) => (Err(error), None),
        };
        let told = self.ranks.tell(told, || self.counted_peak());
        let told = told.map(|tally| (tally, checked.unwrap_or_default()));
        let (tally, Checked { nonfinite, squares }) = match told {
            Ok(told) => told,
            Err(error) => {
                drop(parts);
                self.abandon(before);
                return Err(error.or_shortage());
            }
        };
        let gradients = std::mem::take(&mut parts.gradients);
        let loss_scale = self.loss_scale();
        let left_out = |found: &&NonFinite| found.handled == OnNonFinite::Skip;
        let skipped = nonfinite.as_ref().filter(left_out);
        if let Some(found) = skipped {
            drop(gradients);
            self.model = before.put_back(self.take_model());
            if found.lower_scale.is_some() {
                self.optimizer.scaler_mut().overflowed();
            }
        } else {
            drop(before);
            if !in_backward {
                let begun = Instant::now();
                let shared = self.update(rate, gradients, squares)?;
                if let (Some(shared), Some(exchange)) = (shared, &mut parts.exchange) {
                    let before = parts.trace.last().map(|last| last.done_at);
                    let until = before.unwrap_or_default() + begun.elapsed();
                    exchange.add_shared(shared, until);
                }
            }
            self.optimizer.scaler_mut().updated();
        }
        after.end(Phase::Optimizer);
        let moments = self.tracker.take().map_or(Vec::new(), |tracker| {
            self.engine.track(None);
            tracker.done(Action::Optimize);
            tracker.end()
        });

        self.steps_done += 1;
        if self.bound.settled.is_none() {
            self.bound.settled = Some(self.meter.read().in_use_bytes);
        }
        let short = self.shortage(&parts);
        let update = after.finish();
        let Parts {
            loss,
            mut phases,
            mut trace,
            exchange,
            ..
        } = parts;
        trace.extend(
            update
                .first()
                .and_then(|update| self.traced_update(&trace, update)),
        );
        phases.extend(update);
        let record = StepRecord {
            step: self.steps_done,
            loss,
            accuracy: tally.accuracy(),
            learning_rate: rate,
            step_s: Seconds(started.elapsed().as_secs_f64()),
            loss_scale,
            skipped: skipped.is_some(),
        };
        Ok(StepReport {
            record,
            phases,
            trace,
            exchange,
            moments,
            nonfinite,
            short,
        })
    }

    /// Forward, loss and backward of all parts of a batch, with the update where it belongs to the backward.
    fn parts(
        &mut self,
        parts: impl ExactSizeIterator<Item = Batch>,
        rate: f64,
    ) -> Result<Parts, TrainError> {
        let count = parts.len();
        let scale = self.loss_scale().unwrap_or(1.0);
        let mut all = Parts::default();
        for (part, batch) in parts.enumerate() {
            all.tally.samples += batch.samples();
            all.tally.predictions += batch.targets.len();
            let run = self.steps_done * count + part;
            let part = self.run_part(batch, run as u64, count, rate)?;
            match count {
                1 => all.gradients = part.gradients,
                _ => accumulate(&self.model, &mut all.gradients, part.gradients),
            }
            all.loss += finite::read(part.loss)? / scale;
            if let Some(right) = part.correct {
                *all.tally.correct.get_or_insert(0) += self::count(right)?;
            }
            for PhaseReading { memory, .. } in &part.phases {
                let peak = &mut all.peak;
                peak.in_use_bytes = peak.in_use_bytes.max(memory.peak_in_use_bytes);
                peak.reserved_bytes = peak.reserved_bytes.max(memory.peak_reserved_bytes);
            }
            all.phases = part.phases;
            all.trace = part.trace;
            if let Some(part) = part.exchange {
                let sum = all.exchange.get_or_insert_default();
                sum.waited += part.waited;
                sum.taken += part.taken;
                sum.returned += part.returned;
                sum.means += part.means;
                sum.parameters += part.parameters;
                sum.operations = part.operations;
            }
        }
        Ok(all)
    }

    /// Looks for what is not finite.
    fn check(&self, parts: &Parts) -> Result<Checked, TrainError> {
        let squares = self.optimizer.sum_of_squares(&self.model, &parts.gradients);
        let squares = squares.map(finite::read).transpose()?;
        let gradient = match squares {
            Some(squares) if squares.is_finite() => None,
            _ => finite::first_gradient(&self.model, &parts.gradients)?,
        };
        if parts.loss.is_finite() && gradient.is_none() {
            return Ok(Checked {
                nonfinite: None,
                squares,
            });
        }
        let scaler = self.optimizer.scaler();
        let lower_scale = scaler.lower().filter(|_| parts.loss.is_finite());
        let found = NonFinite {
            step: self.steps_done + 1,
            loss: parts.loss,
            gradient,
            handled: match lower_scale {
                Some(_) => OnNonFinite::Skip,
                None => self.settings.on_nonfinite,
            },
            loss_scale: scaler.scale(),
            lower_scale,
        };
        match found.handled {
            OnNonFinite::Stop => Err(TrainError::NonFinite(Box::new(found))),
            OnNonFinite::Skip | OnNonFinite::Continue => Ok(Checked {
                nonfinite: Some(found),
                squares,
            }),
        }
    }

    /// Updates the model: what ranks that share out the updates have sent each other.
    fn update(
        &mut self,
        rate: f64,
        gradients: GradientsParams,
        squares: Option<f64>,
    ) -> Result<Option<SharedReading>, RecordError> {
        // The optimizer consumes the model, so that it can update parameters in place.
        let mut model = self.take_model();
        untie(&mut model);
        let first_step = self.steps_done == 0;
        let engine = &self.engine;
        let mut model = self
            .optimizer
            .step_by_layer(rate, model, gradients, squares, |stage| {
                engine.make_room_for_update(stage, first_step);
            });
        let mut sent = Ok(None);
        if let Some(shards) = self.optimizer.shards() {
            let (shared, result) = shards.share(model);
            model = shared;
            let owners = shards.owners().iter();
            sent = result
                .map(Some)
                .map_err(|error| RecordError::PartlyUpdated {
                    updated: owners.filter(|(id, _)| shards.keeps(*id)).count(),
                    of: shards.owners().len(),
                    source: Box::new(error.into()),
                });
        }
        self.model = model;
        tie(&mut self.model);
        sent
    }

    fn take_model(&mut self) -> Sequential<Stage> {
        std::mem::replace(&mut self.model, Sequential::new(Vec::new()))
    }

    /// Leaves nothing of a step that was begun.
    fn abandon(&mut self, before: Before) {
        self.engine.trace(false, &*self.meter);
        self.engine.track(None);
        self.tracker = None;
        self.model = before.put_back(self.take_model());
        // What the step left in burn's graph goes with the next backward.
        free_dead_nodes(&self.device);
        self.meter.trim();
    }

    /// The schedule's `optimize`, which the executor leaves to the trainer, after what the executor has traced.
    fn traced_update(&self, trace: &[TraceEntry], update: &PhaseReading) -> Option<TraceEntry> {
        let before = trace.last()?;
        self.engine.updates().then(|| TraceEntry {
            action: Action::Optimize,
            index: before.index + 1,
            in_use_bytes: update.memory.in_use_bytes,
            peak_bytes: update.memory.peak_in_use_bytes,
            reserved_bytes: update.memory.reserved_bytes,
            done_at: before.done_at + Duration::from_secs_f64(update.seconds_s),
        })
    }

    /// Forward, loss and backward of one of `count` equal parts of a batch, and the memory of its phases. Losses and
    /// gradients of the parts add up to those of the whole batch's mean.
    fn run_part(
        &mut self,
        batch: Batch,
        run: u64,
        count: usize,
        rate: f64,
    ) -> Result<Part, TrainError> {
        let mut before = PhaseRecorder::start(Some(&*self.meter));
        self.engine.make_room(batch.bytes(self.settings.dtype));
        let scaler = self.optimizer.scaler();
        let batch = step_batch(batch, self.settings.dtype, scaler, &self.device)?;
        if let Some(tracker) = &self.tracker {
            tracker.batch();
        }
        before.end(Phase::ZeroGrad);
        let seed = StepSeed::new(self.settings.seed, run).of_rank(self.ranks.rank());
        let mut part = match self.engine.update() {
            Update::After => self
                .engine
                .run(&self.model, batch, seed, count, &self.device)?,
            Update::InBackward => self.engine.run_updating(
                &mut self.model,
                batch,
                seed,
                (rate, &mut self.optimizer),
                &self.device,
            )?,
        };
        part.phases.splice(0..0, before.finish());
        Ok(part)
    }

    /// Goes on for a few steps that recompute nothing, like the run's own in everything else, each on `parts`: the highest
    /// peaks, and the times of all but the first. Steps after it recompute nothing.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub(crate) fn plain_steps<P>(
        &mut self,
        parts: impl Fn() -> P,
    ) -> Result<(PeakMemory, StepTimes), TrainError>
    where
        P: ExactSizeIterator<Item = Batch>,
    {
        self.bound = Bound::default();
        self.engine
            .recompute_nothing(self.model.len(), &self.meter)?;
        let mut peak = PeakMemory {
            in_use_bytes: Bytes(0),
            reserved_bytes: None,
            ..self.meter.lifetime_peak()
        };
        let mut times = StepTimes::new();
        for step in 0..PLAIN_STEPS {
            let report = self.step(parts())?;
            for PhaseReading { memory, .. } in &report.phases {
                peak.in_use_bytes = peak.in_use_bytes.max(memory.peak_in_use_bytes);
                peak.reserved_bytes = peak.reserved_bytes.max(memory.peak_reserved_bytes);
            }
            times.add(report.record.step_s, step > 0);
        }
        Ok((peak, times))
    }

    /// How often pools were trimmed so that they stayed within the budget.
    #[must_use]
    pub fn trims(&self) -> u64 {
        self.engine.trims()
    }

    /// The model's output, with room for each stage.
    fn evaluation_forward(&self, model: &Sequential<Stage>, input: Value) -> Value {
        let mut value = input;
        for (stage, layer) in model.layers().iter().enumerate() {
            self.engine.make_room_for_forward(stage);
            value = layer.forward(value);
        }
        value
    }

    /// Mean loss and accuracy over batches, and over those of all ranks, with dropout off and batch normalisation by its
    /// running statistics.
    ///
    /// # Errors
    ///
    /// If a batch does not fit the model, or the device fails.
    pub fn evaluate(&self, batches: impl Iterator<Item = Batch>) -> Result<EvalRecord, TrainError> {
        let own = self.evaluated(batches);
        let all = self.ranks.tell(own, || self.counted_peak())?;
        Ok(EvalRecord {
            step: self.steps_done,
            samples: all.samples,
            loss: all.loss / all.predictions.max(1) as f64,
            accuracy: all.accuracy(),
        })
    }

    /// This rank's part of an evaluation.
    fn evaluated(&self, batches: impl Iterator<Item = Batch>) -> Result<Tally, TrainError> {
        let model = self.model.valid();
        let device = self.device.clone().without_autodiff();
        let mut all = Tally::default();
        for batch in batches {
            let size = batch.targets.len();
            all.samples += batch.samples();
            let (input, targets) = to_device(batch, self.settings.dtype, &device)?;
            let (mean, right) = targets.compared(self.evaluation_forward(&model, input));
            all.loss += finite::read(mean)? * size as f64;
            if let Some(right) = right {
                *all.correct.get_or_insert(0) += count(right)?;
            }
            all.predictions += size;
        }
        Ok(all)
    }

    /// The highest peak so far of the bytes that a budget counts.
    fn counted_peak(&self) -> Bytes {
        self.meter.lifetime_peak().counted(self.bound.count)
    }
}

/// Adds a part's gradients to a sum in `f32`: halves would lose what is small beside the sum, and overflow sooner.
fn accumulate<M: Module>(model: &M, sum: &mut GradientsParams, part: GradientsParams) {
    struct Add<'a> {
        sum: &'a mut GradientsParams,
        part: GradientsParams,
    }
    impl ModuleVisitor for Add<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Taken, so that a parameter that is used twice is added once.
            if let Some(gradient) = self.part.remove::<D>(param.id) {
                let gradient = gradient.cast(Dtype::F32.float());
                let sum = match self.sum.remove::<D>(param.id) {
                    Some(sum) => sum + gradient,
                    None => gradient,
                };
                self.sum.register::<D>(param.id, sum);
            }
        }
    }
    model.visit(&mut Add { sum, part });
}

/// Moves a batch to the device as a step takes it.
///
/// # Errors
///
/// As [`to_device`].
pub(super) fn step_batch(
    batch: Batch,
    dtype: Dtype,
    scaler: &LossScaler,
    device: &Device,
) -> Result<StepBatch, TrainError> {
    let (input, targets) = to_device(batch, dtype, device)?;
    Ok((input, targets, scaler.tensor(device)))
}

/// Moves a batch to the device, its inputs in the model's type.
///
/// # Errors
///
/// If its values do not fill its shape.
pub fn to_device(
    batch: Batch,
    dtype: Dtype,
    device: &Device,
) -> Result<(Value, TargetTensor), TrainError> {
    let input = match batch.inputs {
        Inputs::Floats { values, shape } => Value::from_floats_in(dtype, values, &shape, device)?,
        Inputs::Tokens { values, shape } => Value::from_tokens(values, &shape, device)?,
    };
    let targets = match batch.targets {
        Targets::Classes(classes) => {
            TargetTensor::Classes(Tensor::from_data(classes.as_slice(), device))
        }
        Targets::Values { values, width } => {
            let shape = [values.len() / width.max(1), width];
            TargetTensor::Values(Value::from_floats(values, &shape, device)?.into_float2()?)
        }
    };
    Ok((input, targets))
}

fn count(tensor: Tensor<1, Int>) -> Result<i64, TrainError> {
    let data = tensor.try_into_data();
    let data = data.map_err(|error| TrainError::Device(error.to_string()))?;
    Ok(data.iter::<i64>().next().unwrap_or(0))
}
