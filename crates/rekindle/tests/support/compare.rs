//! Runs a model the plain way and in segments, and compares everything that a training step decides.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Tensor},
};
use rekindle::{Layer, Sequential, StepSeed, TensorTree, checkpoint_sequential, retie};

const STEPS: u64 = 3;
const LEARNING_RATE: f64 = 1e-2;

/// Everything that a training step decides: names with their values.
pub type Trace = Vec<(String, Vec<f32>)>;

/// A hand-written burn training loop, with the seeds of so many segments.
pub fn plain<L, A>(
    model: &Sequential<L>,
    input: &A,
    device: &Device,
    segments: usize,
    loss: impl Fn(A) -> Tensor<1>,
) -> Trace
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    let length = model.layers.len() / segments;
    trained(model, device, |model| {
        let seed = StepSeed::draw(device);
        let mut activation = input.clone();
        for (place, layer) in model.layers.iter().enumerate() {
            if place % length == 0 && place / length < segments {
                device.seed(seed.segment(place / length));
            }
            activation = layer.forward(activation);
        }
        let value = loss(activation);
        let gradients = GradientsParams::from_grads(value.backward(), model);
        (value.inner(), gradients)
    })
}

/// The same training in segments.
pub fn checkpointed<L, A>(
    model: &Sequential<L>,
    input: &A,
    device: &Device,
    segments: usize,
    loss: impl Fn(A) -> Tensor<1>,
) -> Trace
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    trained(model, device, |model| {
        let step = checkpoint_sequential(model, segments, input.clone(), &loss);
        let step = step.expect("as many segments as layers at most");
        (step.loss, step.gradients)
    })
}

fn trained<M: Module>(
    model: &M,
    device: &Device,
    step_of: impl Fn(&M) -> (Tensor<1>, GradientsParams),
) -> Trace {
    let mut model = private_copy(model);
    let mut optimizer = AdamConfig::new().init();
    let mut trace = Trace::new();
    for step in 0..STEPS {
        device.seed(step);
        let (loss, gradients) = step_of(&model);
        trace.push((format!("loss of step {step}"), floats(loss)));
        trace.extend(gradients_of(step, &model, &gradients));
        model = retie(optimizer.step(LEARNING_RATE, model, gradients));
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
