//! Shows on the spot that a schedule changes nothing: the same training by a hand-written burn loop and by the
//! executor, compared value by value.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use rekindle_plan::{PlanError, StageId, planner};
use serde::Serialize;
use thiserror::Error;

use super::{
    optimizer::AnyOptimizer,
    settings::TrainSettings,
    trainer::{TrainError, rows, to_device},
};
use crate::{
    data::{DataError, Dataset, Shuffled},
    device::{DeviceError, DeviceId, open},
    executor::Executor,
    layer::Layer,
    model::{
        build::{BuildError, build},
        spec::ModelSpec,
        stage::Stage,
        stages::StagePlan,
    },
    record::Optimizer as _,
    seed::StepSeed,
    sequential::Sequential,
};

/// What is verified.
pub struct Verification<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Its data.
    pub data: &'a dyn Dataset,
    /// Batch, seed, optimizer and so on; `steps` is how many steps are compared.
    pub settings: &'a TrainSettings,
    /// Segment counts to compare; all powers of two below the number of stages, and that number, where empty.
    pub segments: &'a [usize],
}

/// The largest differences between the plain run and one with so many segments.
///
/// A difference is relative to the largest value of its tensor, or absolute where that is below 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of segments.
    pub segments: usize,
    /// Over the losses of all steps.
    pub loss: f64,
    /// Over all gradients of all steps.
    pub gradients: f64,
    /// Over all parameters and running statistics after the last step.
    pub state: f64,
    /// Whether every value is the same to the bit.
    pub identical: bool,
}

/// A verification that could not be.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The model cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The data cannot fill a batch.
    #[error(transparent)]
    Data(#[from] DataError),
    /// So many segments there cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step could not run.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Compares on a device that is known to answer. `done` is told of each comparison.
///
/// # Errors
///
/// A [`VerifyError`] where nothing could be compared; differences are no error here.
pub fn verify(
    verification: &Verification<'_>,
    device: DeviceId,
    done: &mut dyn FnMut(&Comparison),
) -> Result<Vec<Comparison>, VerifyError> {
    let Verification {
        model,
        data,
        settings,
        segments,
    } = *verification;
    let device = open(device, settings.dtype)?.device;
    let shape = model.infer().map_err(BuildError::from)?;
    let stages = StagePlan::new(model, &shape);
    let batches = Shuffled::new(data.len(), settings.batch, settings.seed)?;
    device.seed(settings.seed);
    let model = Sequential::new(build(model, &stages, settings.dtype, &device)?);
    let trial = Trial {
        model,
        data,
        batches,
        settings,
        device,
    };
    let stages = trial.model.len();
    let segments = if segments.is_empty() {
        let powers = (0..).map(|power| 1 << power);
        powers.take_while(|&k| k < stages).chain([stages]).collect()
    } else {
        segments.to_vec()
    };
    let plain = trial.train(None)?;
    let mut comparisons = Vec::with_capacity(segments.len());
    for segments in segments {
        let executor = Executor::new(planner::uniform(stages, segments)?);
        let comparison = plain.compare(&trial.train(Some(&executor))?, segments);
        done(&comparison);
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

struct Trial<'a> {
    model: Sequential<Stage>,
    data: &'a dyn Dataset,
    batches: Shuffled,
    settings: &'a TrainSettings,
    device: Device,
}

/// Everything that a training decides.
#[derive(Default)]
struct Values {
    losses: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    state: Vec<Vec<f32>>,
}

impl Trial<'_> {
    /// Trains a copy of the model: with an executor, or by the plain loop.
    fn train(&self, executor: Option<&Executor>) -> Result<Values, TrainError> {
        let mut model = self.model.valid().train();
        let mut optimizer = AnyOptimizer::new(self.settings.optimizer, self.settings.clip);
        let mut values = Values::default();
        for step in 0..self.settings.steps {
            let batch = self.data.batch(&self.batches.step(step));
            let (input, targets) = to_device(batch, self.settings.dtype, &self.device)?;
            let seed = StepSeed::new(self.settings.seed, step as u64);
            let (loss, gradients) = match executor {
                Some(executor) => {
                    let output =
                        executor.step(&model, input, seed, |output| targets.loss(rows(output)))?;
                    (output.loss, output.gradients)
                }
                None => {
                    let mut value = input;
                    for (stage, layer) in model.layers().iter().enumerate() {
                        if layer.draws_random() {
                            self.device.seed(seed.stage(StageId(stage)));
                        }
                        value = layer.forward(value);
                    }
                    let loss = targets.loss(rows(value));
                    let gradients = GradientsParams::from_grads(loss.backward(), &model);
                    (loss.inner(), gradients)
                }
            };
            values.losses.push(floats(loss));
            values.gradients.extend(gradients_of(&model, &gradients));
            let rate = self.settings.learning_rate.at(step, self.settings.steps);
            model = optimizer.step(rate, model, gradients);
        }
        values.state = state_of(&model);
        Ok(values)
    }
}

impl Values {
    fn compare(&self, other: &Self, segments: usize) -> Comparison {
        let identical = self.losses == other.losses
            && self.gradients == other.gradients
            && self.state == other.state;
        Comparison {
            segments,
            loss: difference(&self.losses, &other.losses),
            gradients: difference(&self.gradients, &other.gradients),
            state: difference(&self.state, &other.state),
            identical,
        }
    }
}

/// The largest difference over all tensors; infinite where shapes differ or a value is not finite.
fn difference(plain: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    if plain.len() != other.len() {
        return f64::INFINITY;
    }
    let of_tensor = |(plain, other): (&Vec<f32>, &Vec<f32>)| {
        if plain.len() != other.len() || !plain.iter().chain(other).all(|value| value.is_finite()) {
            return f64::INFINITY;
        }
        let scale = plain
            .iter()
            .fold(1.0f32, |scale, value| scale.max(value.abs()));
        let largest = plain
            .iter()
            .zip(other)
            .fold(0.0f32, |largest, (plain, other)| {
                largest.max((plain - other).abs())
            });
        f64::from(largest / scale)
    };
    plain.iter().zip(other).map(of_tensor).fold(0.0, f64::max)
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// The gradient of every parameter, empty where it has none.
fn gradients_of<M: Module>(model: &M, gradients: &GradientsParams) -> Vec<Vec<f32>> {
    struct Read<'a> {
        gradients: &'a GradientsParams,
        values: Vec<Vec<f32>>,
    }
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.gradients.get::<D>(param.id);
            self.values.push(gradient.map(floats).unwrap_or_default());
        }
    }
    let mut read = Read {
        gradients,
        values: Vec::new(),
    };
    model.visit(&mut read);
    read.values
}

/// Every parameter and running statistic.
fn state_of<M: Module>(model: &M) -> Vec<Vec<f32>> {
    struct Read(Vec<Vec<f32>>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(floats(param.val()));
        }
    }
    let mut read = Read(Vec::new());
    model.valid().visit(&mut read);
    read.0
}
