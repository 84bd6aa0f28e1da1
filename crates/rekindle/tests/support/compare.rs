//! Runs a model the plain way and under a schedule, and compares everything that a training step decides.

use std::sync::Arc;

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Tensor},
};
use rekindle::{
    Executor, Layer, Sequential, StepSeed, TensorTree,
    meter::{MemoryReading, Meter, PeakMemory},
    retie,
};
use rekindle_plan::{Action, Schedule, StageId, forward_counts};

const STEPS: u64 = 3;
const LEARNING_RATE: f64 = 1e-2;
const RUN_SEED: u64 = 7;

/// A meter is what makes the executor trace; what it reads does not matter here.
pub struct Blind;

impl Meter for Blind {
    fn read(&self) -> MemoryReading {
        MemoryReading::default()
    }

    fn start_interval(&self) {}

    fn lifetime_peak(&self) -> PeakMemory {
        PeakMemory::default()
    }
}

/// Everything that a training step decides: names with their values.
pub type Trace = Vec<(String, Vec<f32>)>;

/// A hand-written burn training loop: no executor, the same seeds.
pub fn plain<L, A>(
    model: &Sequential<L>,
    input: &A,
    device: &Device,
    loss: impl Fn(A) -> Tensor<1>,
) -> Trace
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    let mut model = private_copy(model);
    let mut optimizer = AdamConfig::new().init();
    let mut trace = Trace::new();
    for step in 0..STEPS {
        let seed = StepSeed::new(RUN_SEED, step);
        let mut activation = input.clone();
        for (stage, layer) in model.layers().iter().enumerate() {
            device.seed(seed.stage(StageId(stage)));
            activation = layer.forward(activation);
        }
        let value = loss(activation);
        trace.push((
            format!("loss of step {step}"),
            floats(value.clone().inner()),
        ));
        let gradients = GradientsParams::from_grads(value.backward(), &model);
        trace.extend(gradients_of(step, &model, &gradients));
        model = retie(optimizer.step(LEARNING_RATE, model, gradients));
    }
    trace.extend(state_of(&model));
    trace
}

/// The same training under a schedule.
pub fn scheduled<L, A>(
    what: &str,
    model: &Sequential<L>,
    input: &A,
    schedule: &Schedule,
    loss: impl Fn(A) -> Tensor<1>,
) -> Trace
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    let mut model = private_copy(model);
    let mut optimizer = AdamConfig::new().init();
    let executor = || Executor::new(schedule.clone());
    let traced = executor().with_meter(Arc::new(Blind)).traced();
    let executor = executor();
    // What only frozen stages would need is left out.
    let frozen = model
        .layers()
        .iter()
        .take_while(|layer| !any_trains(*layer));
    let wanted = schedule.without_frozen(frozen.count());
    let runs = forward_counts(model.len(), &wanted);
    let mut trace = Trace::new();
    for step in 0..STEPS {
        let executor = match step {
            0 => &traced,
            _ => &executor,
        };
        let output = executor
            .step(&model, input.clone(), StepSeed::new(RUN_SEED, step), &loss)
            .expect("the schedule fits the model");
        if step == 0 {
            // Every action has its entry, in the schedule's order, wherever it was done.
            let done = output.trace.iter().map(|entry| entry.action);
            assert_eq!(done.collect::<Vec<Action>>(), wanted, "{what}");
        }
        assert_eq!(output.forward_counts, runs, "{what}");
        trace.push((format!("loss of step {step}"), floats(output.loss)));
        trace.extend(gradients_of(step, &model, &output.gradients));
        model = retie(optimizer.step(LEARNING_RATE, model, output.gradients));
    }
    trace.extend(state_of(&model));
    trace
}

/// Reports every mismatch with its largest difference, and returns the largest of all, relative to the largest value of
/// its tensor, or to 1. A tolerance of zero asks for equal bits; 0 and -0 are equal. NaN is always a mismatch.
pub fn assert_same(what: &str, plain: &Trace, other: &Trace, tolerance: f32) -> f32 {
    let names = |trace: &Trace| {
        trace
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(plain), names(other), "{what}");
    let mut mismatches = Vec::new();
    let mut largest_of_all = 0.0_f32;
    for ((name, expected), (_, actual)) in plain.iter().zip(other) {
        assert_eq!(expected.len(), actual.len(), "{what}: {name}");
        assert!(
            expected.iter().all(|value| value.is_finite()),
            "{what}: {name} is not finite"
        );
        let scale = expected
            .iter()
            .fold(1.0f32, |scale, value| scale.max(value.abs()));
        // In this order, unlike in `f32::max`, NaN is the largest.
        let largest = expected
            .iter()
            .zip(actual)
            .map(|(expected, actual)| (expected - actual).abs())
            .max_by(f32::total_cmp)
            .unwrap_or(0.0);
        let same = match tolerance {
            0.0 => expected.iter().zip(actual).all(|(a, b)| same_bits(*a, *b)),
            _ => largest <= tolerance * scale,
        };
        if same {
            largest_of_all = largest_of_all.max(largest / scale);
        } else {
            mismatches.push(format!("{name}: {largest:e}"));
        }
    }
    assert!(
        mismatches.is_empty(),
        "{what} differs from the plain run: {}",
        mismatches.join("; ")
    );
    largest_of_all
}

/// 0 and -0 count as the same.
fn same_bits(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a == 0.0 && b == 0.0)
}

/// Parameters of the same values and ids, statistics of its own. Copies of tied layers are tied again.
pub fn private_copy<M: Module>(model: &M) -> M {
    retie(model.valid().train())
}

pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn any_trains<M: Module>(module: &M) -> bool {
    struct Look(bool);
    impl ModuleVisitor for Look {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= param.val().is_require_grad();
        }
    }
    let mut look = Look(false);
    module.visit(&mut look);
    look.0
}

/// Every parameter's gradient, or an empty list where it has none.
pub fn gradients_of<M: Module>(step: u64, model: &M, gradients: &GradientsParams) -> Trace {
    struct Read<'a> {
        step: u64,
        gradients: &'a GradientsParams,
        trace: Trace,
    }
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.gradients.get::<D>(param.id);
            self.trace.push((
                format!("gradient {} of step {}", self.trace.len(), self.step),
                gradient.map(floats).unwrap_or_default(),
            ));
        }
    }
    let mut read = Read {
        step,
        gradients,
        trace: Trace::new(),
    };
    model.visit(&mut read);
    read.trace
}

/// Every parameter and every running statistic, pending updates merged.
pub fn state_of<M: Module>(model: &M) -> Trace {
    struct Read(Trace);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0
                .push((format!("state {}", self.0.len()), floats(param.val())));
        }
    }
    let mut read = Read(Trace::new());
    model.valid().visit(&mut read);
    read.0
}
