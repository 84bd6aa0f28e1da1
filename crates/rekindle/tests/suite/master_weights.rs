//! Updates that a half type would lose add up in the `f32` copy, which records keep.

use burn::{
    module::{Module, Param},
    optim::{
        AdamConfig, GradientsParams, ModuleOptimizer, Optimizer, RecordState, SgdConfig, StateSink,
        StateSource,
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
    let device = Device::flex();
    let adam = MasterWeights::new(AdamConfig::new().build());
    let update = |weight: &Tensor<1>, state| {
        let gradient = weight.full_like(UPDATE);
        adam.step(1e-4, weight.clone(), gradient, state)
    };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let mut weight = Tensor::<1>::ones([3], (&device, dtype));
        let mut state = None;
        for _ in 0..5 {
            (weight, state) = update(&weight, state);
        }
        let mut kept = StateSink::default();
        state
            .as_ref()
            .expect("a state")
            .state_flatten("", &mut kept);
        let mut source = StateSource::new(kept.scalars.into_iter().collect());
        for (name, data) in kept.tensors {
            source.insert_tensor(name, data);
        }
        let mut resumed = RecordState::state_unflatten("", &mut source, &device);
        assert!(resumed.is_some(), "{dtype:?}");
        let mut other = weight.clone();
        for _ in 0..40 {
            (weight, state) = update(&weight, state);
            (other, resumed) = update(&other, resumed);
            weight.to_data().assert_eq(&other.to_data(), true);
        }
        assert!(weight.max().into_scalar::<f32>() < 1.0, "{dtype:?}");
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
