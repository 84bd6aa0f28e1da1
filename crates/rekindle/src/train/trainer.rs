//! One optimizer step after another, on a model built from a description.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{
    module::Module,
    optim::GradientsAccumulator,
    tensor::{Device, Int, Tensor},
};
use rekindle_plan::{Action, Bytes, PlanError, Seconds};

use super::{
    engine::{Engine, Part},
    loss::TargetTensor,
    optimizer::AnyOptimizer,
    record::{EvalRecord, StepRecord},
    run_dir_error::RunDirError,
    settings::TrainSettings,
    snapshot::{Snapshot, SnapshotWriter},
    step_times::StepTimes,
    tracker::{TrackedMoment, Tracker},
};
use crate::{
    data::batch::{Batch, Inputs, Targets},
    dtype::Dtype,
    executor::{StepError, TraceEntry},
    layer::Layer,
    meter::{Meter, PeakMemory, Phase, PhaseReading, PhaseRecorder},
    model::{
        spec::{ElementKind, SampleShape},
        stage::Stage,
        value::{Value, ValueError},
    },
    record::RecordError,
    seed::StepSeed,
    sequential::Sequential,
};

/// Steps that recompute nothing, run for comparison.
const PLAIN_STEPS: usize = 6;

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
}

/// What one optimizer step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Loss, accuracy, time.
    pub record: StepRecord,
    /// Memory by phase.
    pub phases: Vec<PhaseReading>,
    /// Memory after every action of the schedule, where the step was [traced](Trainer::trace_next_step).
    pub trace: Vec<TraceEntry>,
    /// What came and what went, where the step was tracked.
    pub moments: Vec<TrackedMoment>,
}

/// A step that could not run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// No loss takes such an output.
    #[error(
        "one sample of the model's output has the shape {got}, but the loss wants one row of numbers: end with a flatten and a linear layer"
    )]
    Output {
        /// What it is.
        got: SampleShape,
    },
    /// The batch does not fit the model.
    #[error(transparent)]
    Batch(#[from] ValueError),
    /// The schedule does not fit the model.
    #[error(transparent)]
    Step(#[from] StepError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The recorded step could not run.
    #[error(transparent)]
    Recorded(#[from] RecordError),
}

impl Trainer {
    /// A trainer that has done no step yet. `output` is the shape of one sample of the model's output.
    ///
    /// # Errors
    ///
    /// If the output is not one row of numbers, which every loss here wants.
    pub(super) fn new(
        model: Sequential<Stage>,
        output: &SampleShape,
        engine: Engine,
        settings: TrainSettings,
        meter: Arc<dyn Meter>,
        device: Device,
    ) -> Result<Self, TrainError> {
        if output.kind != ElementKind::Float || output.dims.len() != 1 {
            return Err(TrainError::Output {
                got: output.clone(),
            });
        }
        Ok(Self {
            optimizer: AnyOptimizer::new(settings.optimizer, settings.clip),
            engine,
            model,
            settings,
            meter,
            device,
            steps_done: 0,
            tracker: None,
        })
    }

    /// Writes the model and the optimizer's state.
    ///
    /// Updates of statistics that wait are merged first, as the next forward would: nothing that is computed changes.
    pub(super) fn save(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        to.model(&self.model())?;
        self.optimizer.save(to)
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

    /// Steps done so far.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        self.steps_done
    }

    /// The model, its statistics up to date.
    pub(super) fn model(&self) -> Sequential<Stage> {
        self.model.valid()
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

    /// Runs one optimizer step on batches whose shapes fit the model: one, or equal parts of one whose gradients add
    /// up. The phases and the trace are those of the last part.
    ///
    /// # Errors
    ///
    /// If the schedule or a batch does not fit the model, or there is no batch.
    pub fn step(
        &mut self,
        parts: impl ExactSizeIterator<Item = Batch>,
    ) -> Result<StepReport, TrainError> {
        let started = Instant::now();
        if let Some(tracker) = &self.tracker {
            tracker.start(self.steps_done + 1);
        }
        let count = parts.len();
        let mut sum = GradientsAccumulator::new();
        let (mut loss, mut correct, mut samples) = (0.0, None, 0);
        let (mut phases, mut trace) = (Vec::new(), Vec::new());
        for (part, batch) in parts.enumerate() {
            samples += batch.targets.len();
            let run = self.steps_done * count + part;
            let part = self.run_part(batch, run as u64, count)?;
            sum.accumulate(&self.model, part.gradients);
            loss += scalar(part.loss);
            if let Some(right) = part.correct {
                *correct.get_or_insert(0) += self::count(right);
            }
            phases = part.phases;
            trace = part.trace;
        }
        self.engine.trace(false, &*self.meter);

        let mut after = PhaseRecorder::start(Some(&*self.meter));
        let rate = self
            .settings
            .learning_rate
            .at(self.steps_done, self.settings.steps);
        // The optimizer consumes the model, so that it can update parameters in place.
        let model = std::mem::replace(&mut self.model, Sequential::new(Vec::new()));
        let first_step = self.steps_done == 0;
        let engine = &self.engine;
        self.model = self
            .optimizer
            .step_by_layer(rate, model, sum.grads(), |stage| {
                engine.make_room_for_update(stage, first_step);
            });
        after.end(Phase::Optimizer);
        let moments = self.tracker.take().map_or(Vec::new(), |tracker| {
            self.engine.track(None);
            tracker.done(Action::Optimize);
            tracker.end()
        });

        self.steps_done += 1;
        let update = after.finish();
        trace.extend(
            update
                .first()
                .and_then(|update| self.traced_update(&trace, update)),
        );
        phases.extend(update);
        let record = StepRecord {
            step: self.steps_done,
            loss,
            accuracy: correct.map(|correct: i64| correct as f64 / samples as f64),
            learning_rate: rate,
            step_s: Seconds(started.elapsed().as_secs_f64()),
        };
        Ok(StepReport {
            record,
            phases,
            trace,
            moments,
        })
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
    fn run_part(&self, batch: Batch, run: u64, count: usize) -> Result<Part, TrainError> {
        let mut before = PhaseRecorder::start(Some(&*self.meter));
        self.engine.make_room(batch.bytes(self.settings.dtype));
        let batch = to_device(batch, self.settings.dtype, &self.device)?;
        if let Some(tracker) = &self.tracker {
            tracker.batch();
        }
        before.end(Phase::ZeroGrad);
        let seed = StepSeed::new(self.settings.seed, run);
        let mut part = self
            .engine
            .run(&self.model, batch, seed, count, &self.device)?;
        part.phases.splice(0..0, before.finish());
        Ok(part)
    }

    /// Goes on for a few steps that recompute nothing, like the run's own in everything else, each on `parts`: the highest
    /// peaks, and the median of their times, the first left out. Steps after it recompute nothing.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn plain_steps<P>(
        &mut self,
        parts: impl Fn() -> P,
    ) -> Result<(PeakMemory, Seconds), TrainError>
    where
        P: ExactSizeIterator<Item = Batch>,
    {
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
        Ok((peak, times.median()))
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

    /// Mean loss and accuracy over batches, with dropout off and batch normalisation by its running statistics.
    ///
    /// # Errors
    ///
    /// If a batch does not fit the model.
    pub fn evaluate(&self, batches: impl Iterator<Item = Batch>) -> Result<EvalRecord, TrainError> {
        let model = self.model.valid();
        let device = self.device.clone().without_autodiff();
        let (mut samples, mut loss, mut correct) = (0, 0.0, None);
        for batch in batches {
            let size = batch.targets.len();
            let (input, targets) = to_device(batch, self.settings.dtype, &device)?;
            let output = rows(self.evaluation_forward(&model, input));
            loss += scalar(targets.loss(output.clone())) * size as f64;
            if let Some(right) = targets.correct(output) {
                *correct.get_or_insert(0) += count(right);
            }
            samples += size;
        }
        Ok(EvalRecord {
            step: self.steps_done,
            samples,
            loss: loss / samples.max(1) as f64,
            accuracy: correct.map(|correct: i64| correct as f64 / samples.max(1) as f64),
        })
    }
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

/// The model's output as `[batch, values]`, in the type of the loss.
pub(super) fn rows(output: Value) -> Tensor<2> {
    match output.into_float2() {
        Ok(rows) => rows.cast(Dtype::F32.float()),
        Err(error) => unreachable!("the output's shape was checked before the first step: {error}"),
    }
}

fn scalar(tensor: Tensor<1>) -> f64 {
    tensor.into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

fn count(tensor: Tensor<1, Int>) -> i64 {
    tensor.into_data().iter::<i64>().next().unwrap_or(0)
}
