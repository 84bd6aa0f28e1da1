//! Updates that a half type would lose add up in the `f32` copy, which records keep.

use burn::{
    module::{Module, Param},
    optim::{
        AdamConfig, GradientsParams, ModuleOptimizer, Optimizer, RecordState, SgdConfig, StateSink,
    },
    tensor::{DType, Device, Tensor, bf16},
};
use rekindle::MasterWeights;

/// `2^-13`: a 32nd of the distance from 1 to the next smaller `bf16`.
const UPDATE: f32 = 1.0 / 8192.0;

#[derive(Module, Debug)]
struct One {
    weight: Param<Tensor<1>>,
}

fn one(dtype: DType) -> One {
    let device = Device::flex().autodiff();
    One {
        weight: Param::from_tensor(Tensor::ones([3], (&device, dtype))),
    }
}

/// A step along the same gradient, given in the model's type.
fn step(optimizer: &mut ModuleOptimizer, rate: f64, model: One) -> One {
    let mut gradients = GradientsParams::new();
    gradients.register(
        model.weight.id,
        model.weight.val().inner().full_like(UPDATE),
    );
    optimizer.step(rate, model, gradients)
}

fn values(model: &One) -> Vec<f32> {
    let value = model.weight.val();
    value.into_data().iter::<f32>().collect()
}

#[test]
fn small_updates_add_up() {
    let sgd = || SgdConfig::new().build();
    let mut kept = ModuleOptimizer::from(MasterWeights::new(sgd()));
    let mut lost = ModuleOptimizer::from(sgd());
    let (mut with, mut without) = (one(DType::BF16), one(DType::BF16));
    for steps in 1..=256_u16 {
        with = step(&mut kept, 1.0, with);
        without = step(&mut lost, 1.0, without);
        // All multiples of 2^-13 below 1 are numbers of f32.
        let exact = 1.0 - f32::from(steps) * UPDATE;
        assert_eq!(
            values(&with),
            [bf16::from_f32(exact).to_f32(); 3],
            "{steps}"
        );
        assert_eq!(values(&without), [1.0; 3]);
    }
    assert_eq!(values(&with), [0.96875; 3]);
    assert_eq!(with.weight.val().dtype(), DType::BF16);
    assert!(with.weight.is_require_grad());
}

#[test]
fn a_record_holds_the_copy() {
    let new = || ModuleOptimizer::from(MasterWeights::new(AdamConfig::new().build()));
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let mut whole = new();
        let mut model = one(dtype);
        for _ in 0..5 {
            model = step(&mut whole, 1e-4, model);
        }
        let mut resumed = new().load_record(whole.to_record());
        let mut other = model.clone();
        for _ in 0..40 {
            model = step(&mut whole, 1e-4, model);
            other = step(&mut resumed, 1e-4, other);
            assert_eq!(values(&model), values(&other), "{dtype:?}");
        }
        assert!(values(&model)[0] < 1.0, "{dtype:?}");
    }
}

#[test]
fn parameters_of_f32_are_updated_as_without() {
    let mut wrapped = ModuleOptimizer::from(MasterWeights::new(AdamConfig::new().build()));
    let mut plain = ModuleOptimizer::from(AdamConfig::new().build());
    let (mut one, mut other) = (one(DType::F32), one(DType::F32));
    for _ in 0..3 {
        one = step(&mut wrapped, 0.1, one);
        other = step(&mut plain, 0.1, other);
        assert_eq!(values(&one), values(&other));
    }
    let value = other.weight.val().inner();
    let sgd = MasterWeights::new(SgdConfig::new().build());
    let (_, state) = sgd.step(0.1, value.clone(), value, None);
    let mut kept = StateSink::default();
    state.expect("a state").state_flatten("", &mut kept);
    assert!(kept.tensors.is_empty());
}
