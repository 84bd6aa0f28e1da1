//! Updates against burn's own, and against closed forms.

use burn::{
    nn::{Linear, LinearConfig},
    optim::ModuleOptimizer,
    tensor::{Device, Distribution},
};

use super::*;
use crate::loss_scale::LossScale;

const RATE: f64 = 0.1;
const STEPS: usize = 3;

fn values(layer: &Linear) -> Vec<u32> {
    let weight = layer.weight.val().inner().flatten::<1>(0, 1);
    let bias = layer.bias.as_ref().map(|bias| bias.val().inner());
    let all = Tensor::cat([Some(weight), bias].into_iter().flatten().collect(), 0);
    all.into_data().iter::<f32>().map(f32::to_bits).collect()
}

fn gradients(layer: &Linear, input: &Tensor<2>) -> GradientsParams {
    let loss = layer.forward(input.clone()).square().mean();
    GradientsParams::from_grads(loss.backward(), layer)
}

#[test]
fn updates_are_those_of_burns_module_optimizer() {
    let device = Device::flex().autodiff();
    let input = Tensor::random([8, 5], Distribution::Normal(0.0, 1.0), &device);
    let optimizers = [
        OptimizerKind::Sgd,
        OptimizerKind::Adam,
        OptimizerKind::AdamW,
    ];
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let decay = || Some(WeightDecayConfig::new(0.01));
    let burns: [ModuleOptimizer; 3] = [
        SgdConfig::new()
            .with_momentum(Some(momentum))
            .with_weight_decay(decay())
            .init(),
        AdamConfig::new()
            .with_beta_2(0.99)
            .with_epsilon(1e-8)
            .with_weight_decay(decay())
            .init(),
        AdamWConfig::new()
            .with_beta_2(0.99)
            .with_epsilon(1e-8)
            .with_weight_decay(0.01)
            .init(),
    ];
    for (optimizer, mut burns) in optimizers.into_iter().zip(burns) {
        let mut ours = AnyOptimizer::new(&TrainSettings {
            optimizer,
            momentum: 0.9,
            weight_decay: Some(0.01),
            betas: [0.9, 0.99],
            ..TrainSettings::default()
        });
        let mut one = LinearConfig::new(5, 7).init(&device);
        let first = values(&one);
        let mut other = one.clone();
        for _ in 0..STEPS {
            let (by_one, by_other) = (gradients(&one, &input), gradients(&other, &input));
            one = ours.step(RATE, one, by_one);
            other = burns.step(RATE, other, by_other);
            assert_eq!(values(&one), values(&other), "{optimizer:?}");
        }
        assert_ne!(values(&one), first, "{optimizer:?}");
        assert!(one.weight.is_require_grad());
    }
}

fn sgd(dtype: Dtype) -> TrainSettings {
    TrainSettings {
        dtype,
        optimizer: OptimizerKind::Sgd,
        ..TrainSettings::default()
    }
}

/// Steps of `weight`, a single number in the settings' type, along the gradient of `loss`, scaled.
fn steps(
    settings: &TrainSettings,
    (rate, count): (f64, usize),
    weight: f32,
    loss: impl Fn(Tensor<1>) -> Tensor<1>,
) -> f32 {
    let device = Device::flex().autodiff();
    let mut optimizer = AnyOptimizer::new(settings);
    let tensor = Tensor::from_data([weight], (&device, settings.dtype.float().into()));
    let mut param = Param::from_tensor(tensor);
    for _ in 0..count {
        let mut loss = loss(param.val()).cast(Dtype::F32.float());
        if let Some(scale) = optimizer.scaler.tensor(&device) {
            loss = loss * scale;
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &param);
        param = optimizer.step(rate, param, gradients);
    }
    param.val().into_data().iter::<f32>().next().expect("one")
}

/// The loss is the weight, so that its gradient is 1: `n` updates of 2^-13 come to `1 - n 2^-13`, of which none is half
/// as large as the distance of numbers below 1, 2^-8 in `bf16` and 2^-11 in `f16`.
#[test]
fn updates_below_the_last_place_add_up_in_master_weights() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for (master_weights, expected) in [(true, 1.0 - 512.0 / 8192.0), (false, 1.0)] {
            let settings = TrainSettings {
                master_weights,
                loss_scale: LossScale::None,
                ..sgd(dtype)
            };
            let weight = steps(&settings, (1.0 / 8192.0, 512), 1.0, |weight| weight);
            assert_eq!(weight, expected, "{dtype}, {master_weights}");
        }
    }
}

/// Of `w x` with `x` = 2^-13, weighted by 2^-13, the gradient by `w` is 2^-26: `f16` has no number between 0 and 2^-24.
#[test]
fn a_gradient_too_small_for_f16_takes_a_scaled_loss() {
    let small = 1.0 / 8192.0;
    let of = |loss_scale| {
        let settings = TrainSettings {
            loss_scale,
            ..sgd(Dtype::F16)
        };
        steps(&settings, (1024.0, 1), 0.0, |weight| {
            (weight * small).cast(Dtype::F32.float()) * small
        })
    };
    let exact = -1024.0 * 2.0_f32.powi(-26);
    assert_eq!(of(LossScale::None), 0.0);
    assert_eq!(of(LossScale::Auto), exact);
    assert_eq!(of(LossScale::Fixed(1024.0)), exact);
}

/// Gradients 3 and 4 have the norm 5, however the loss is scaled.
#[test]
fn gradients_are_clipped_without_the_scale() {
    let device = Device::flex().autodiff();
    let settings = TrainSettings {
        clip_norm: Some(1.0),
        loss_scale: LossScale::Fixed(1024.0),
        ..sgd(Dtype::F32)
    };
    let param = Param::from_tensor(Tensor::<1>::zeros([2], &device));
    let mut gradients = GradientsParams::new();
    let scaled = [3.0 * 1024.0, 4.0 * 1024.0];
    gradients.register(param.id, Tensor::<1>::from_data(scaled, &Device::flex()));
    let param = AnyOptimizer::new(&settings).step(1.0, param, gradients);
    let found: Vec<f32> = param.val().into_data().iter::<f32>().collect();
    for (found, exact) in found.iter().zip([-0.6, -0.8]) {
        assert!((found - exact).abs() < 1e-6, "{found}");
    }
}
