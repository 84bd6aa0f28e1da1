//! Verifies that a plan changes no results: runs the same training by a hand-written burn loop and by the plan, and
//! compares all values.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    engine::{Engine, StepBatch, scaled_loss, step_batch},
    finite,
    optimizer::AnyOptimizer,
    session::{Job, Planned, RunError, ScheduleRequest, built::Built},
};
use crate::{
    device::{DeviceId, OpenDevice, open},
    model::stage::{Stage, tie},
};
use rekindle::{
    record::{Optimizer as _, Update},
    seed::StepSeed,
    sequential::Sequential,
};

/// The largest differences between the plain run and one by a plan.
///
/// A difference is relative to the largest value of its tensor, or absolute where that is below 1. Of the state, root mean
/// squares take the place of largest values: an adaptive optimizer moves an element whose gradient is zero within rounding by
/// a whole step, one way or the other.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// The plan's name: `2 segments`, `within 40.0 MiB`, `the config's plan`, a file.
    pub plan: String,
    /// The planner that found it.
    pub planner: String,
    /// Number of segments; `null` where stages are recomputed in another way.
    pub segments: Option<usize>,
    /// The largest difference of a loss.
    pub loss: f64,
    /// The largest difference of a gradient.
    pub gradients: f64,
    /// The largest difference of a parameter or a statistic after the last step.
    pub state: f64,
    /// Whether every value is the same to the bit.
    pub identical: bool,
}

/// The default numbers of segments to compare: all powers of two below the number of stages, and that number.
#[must_use]
pub fn usual_segments(stages: usize) -> Vec<usize> {
    let powers = (0..).map(|power| 1 << power);
    powers.take_while(|&k| k < stages).chain([stages]).collect()
}

/// Compares the plain loop with each of these plans, which have names, over the first part of each step, on a device that was
/// probed before. `done` is called after each comparison.
///
/// # Errors
///
/// A [`RunError`] if nothing could be compared; differences are not errors here.
pub fn verify(
    job: &Job<'_>,
    plans: Vec<(String, ScheduleRequest)>,
    device: DeviceId,
    done: &mut dyn FnMut(&Comparison),
) -> Result<Vec<Comparison>, RunError> {
    let OpenDevice { device, meter } = open(device, job.settings.dtype)?;
    let built = Built::new(job, &device)?;
    let mut engine = built.record(job, &device, &meter, &mut |_| ())?;
    let trial = Trial { built, job, device };
    let plain = trial.train(None)?;
    let mut comparisons = Vec::with_capacity(plans.len());
    for (name, plan) in plans {
        let planned = engine.plan(job, &plan)?;
        let comparison = plain.compare(&trial.train(Some(&engine))?, name, &planned);
        done(&comparison);
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

struct Trial<'a> {
    built: Built,
    job: &'a Job<'a>,
    device: Device,
}

/// All values that result from a training.
#[derive(Default)]
struct Values {
    losses: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    state: Vec<Vec<f32>>,
}

impl Trial<'_> {
    /// Trains a copy of the model: by a plan, or by the plain loop.
    fn train(&self, engine: Option<&Engine>) -> Result<Values, RunError> {
        let Job {
            settings, train, ..
        } = self.job;
        let mut model = self.built.model.valid().train();
        tie(&mut model);
        let mut optimizer = match engine {
            Some(engine) => engine.optimizer(settings),
            None => AnyOptimizer::new(settings),
        };
        let mut values = Values::default();
        for step in 0..settings.steps {
            let samples = self.built.batches.samples(step, self.job.places(0));
            let batch = train.batch(&samples);
            let batch = step_batch(batch, settings.dtype, &optimizer.scaler, &self.device);
            let seed = StepSeed::new(settings.seed, step as u64);
            let rate = settings.rate_at(step);
            let (loss, gradients) = match engine {
                Some(engine) => {
                    let update = (rate, &mut optimizer);
                    let part = engine.run(&mut model, batch, seed, update, &self.device)?;
                    if engine.step.update() == Update::InBackward {
                        values.losses.push(floats(part.loss));
                        continue;
                    }
                    (part.loss, part.gradients)
                }
                None => self.plain(&model, batch, seed),
            };
            values.losses.push(floats(loss));
            let may_fall = optimizer.scaler.lower().is_some();
            if may_fall && finite::first(&model, Some(&gradients))?.is_some() {
                optimizer.scaler.overflowed();
                continue;
            }
            values.gradients.extend(values_of(&model, Some(&gradients)));
            model = optimizer.step(rate, model, gradients);
            optimizer.scaler.updated();
            tie(&mut model);
        }
        values.state = values_of(&model.valid(), None);
        Ok(values)
    }

    /// One step of an ordinary burn loop, with the seed of the step that it is compared with.
    fn plain(
        &self,
        model: &Sequential<Stage>,
        batch: StepBatch,
        seed: StepSeed,
    ) -> (Tensor<1>, GradientsParams) {
        self.device.seed(seed.segment(0));
        let (loss, _) = scaled_loss(model, batch);
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        (loss.inner(), gradients)
    }
}

impl Values {
    fn compare(&self, other: &Self, plan: String, planned: &Planned) -> Comparison {
        // A step that updates in the backward pass returns no gradients.
        let gradients = match planned.summary.update {
            Update::After => &self.gradients[..],
            Update::InBackward => &[],
        };
        let identical = self.losses == other.losses
            && gradients == other.gradients
            && self.state == other.state;
        Comparison {
            plan,
            planner: planned.summary.planner.to_string(),
            segments: planned.summary.segments.as_ref().map(Vec::len),
            loss: difference(&self.losses, &other.losses, largest),
            gradients: difference(gradients, &other.gradients, largest),
            state: difference(&self.state, &other.state, root_mean_square),
            identical,
        }
    }
}

/// The largest difference over all tensors, each as this size of what lies between the two, relative to that of the plain
/// one; infinite where shapes differ or a value is not finite.
fn difference(plain: &[Vec<f32>], other: &[Vec<f32>], size: fn(&[f32]) -> f64) -> f64 {
    if plain.len() != other.len() {
        return f64::INFINITY;
    }
    let of_tensor = |(plain, other): (&Vec<f32>, &Vec<f32>)| {
        if plain.len() != other.len() || !plain.iter().chain(other).all(|value| value.is_finite()) {
            return f64::INFINITY;
        }
        let apart = plain.iter().zip(other).map(|(plain, other)| plain - other);
        size(&apart.collect::<Vec<_>>()) / size(plain).max(1.0)
    };
    plain.iter().zip(other).map(of_tensor).fold(0.0, f64::max)
}

fn largest(values: &[f32]) -> f64 {
    f64::from(values.iter().map(|value| value.abs()).fold(0.0, f32::max))
}

fn root_mean_square(values: &[f32]) -> f64 {
    let squares = values.iter().map(|&value| f64::from(value).powi(2));
    (squares.sum::<f64>() / values.len().max(1) as f64).sqrt()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Every parameter and running statistic; with gradients, that of every parameter, empty where it has none.
fn values_of<M: Module>(model: &M, gradients: Option<&GradientsParams>) -> Vec<Vec<f32>> {
    struct Read<'a> {
        gradients: Option<&'a GradientsParams>,
        values: Vec<Vec<f32>>,
    }
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = match self.gradients {
                Some(gradients) => gradients.get::<D>(param.id),
                None => Some(param.val()),
            };
            self.values.push(tensor.map(floats).unwrap_or_default());
        }
    }
    let mut read = Read {
        gradients,
        values: Vec::new(),
    };
    model.visit(&mut read);
    read.values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizers_step_one_way_or_the_other_is_none_of_a_whole_tensor() {
        let plain = [vec![0.5; 400]];
        let mut other = plain.clone();
        // One element of 400.
        other[0][7] += 0.25;
        assert_eq!(difference(&plain, &other, largest), 0.25);
        assert_eq!(difference(&plain, &other, root_mean_square), 0.0125);
        // A step that is missing everywhere is the same by both.
        let missing = [vec![0.25; 400]];
        assert_eq!(difference(&plain, &missing, largest), 0.25);
        assert_eq!(difference(&plain, &missing, root_mean_square), 0.25);
        // Relative to the tensor where it is large.
        let (large, apart) = ([vec![30.0, 40.0]], [vec![30.0, 41.0]]);
        assert_eq!(difference(&large, &apart, largest), 1.0 / 40.0);
        assert_eq!(difference(&large, &apart, root_mean_square), 1.0 / 50.0);
    }

    #[test]
    fn other_shapes_and_what_is_not_finite_differ_infinitely() {
        let plain = [vec![1.0, 2.0]];
        for other in [vec![], vec![vec![1.0]], vec![vec![1.0, f32::NAN]]] {
            for size in [largest, root_mean_square] {
                assert_eq!(difference(&plain, &other, size), f64::INFINITY);
            }
        }
    }
}
