//! Steps that record themselves at their first run.

use burn::{
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Tensor},
};
use rekindle::record::{forget, run_recorded};

fn loss(layer: &Linear, input: Tensor<2>) -> Tensor<1> {
    layer.forward(input).square().mean()
}

/// Runs the step, checks its gradient, and says whether it was planned.
fn planned(layer: &Linear) -> bool {
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &layer.weight.device());
    let mut planned = false;
    let output = run_recorded(layer, input.clone(), loss, |recorded| {
        planned = true;
        recorded.plain()
    });
    let plain = GradientsParams::from_grads(loss(layer, input).backward(), layer);
    let weight = |gradients: &GradientsParams| {
        let gradient = gradients.get::<2>(layer.weight.id).expect("a gradient");
        gradient.into_data()
    };
    assert_eq!(weight(&output.expect("run").gradients), weight(&plain));
    planned
}

#[test]
fn a_step_is_planned_once_for_each_model() {
    let device = Device::flex().autodiff();
    let layer = LinearConfig::new(6, 5).init(&device);
    assert!(planned(&layer));
    assert!(!planned(&layer) && !planned(&layer.clone()));
    let other = LinearConfig::new(6, 5).init(&device);
    assert!(planned(&other) && !planned(&other));
    forget();
    assert!(planned(&other));
}

#[test]
fn each_thread_keeps_its_own() {
    let layer = LinearConfig::new(6, 5).init(&Device::flex().autodiff());
    assert!(planned(&layer) && !planned(&layer));
    let elsewhere = std::thread::spawn(move || planned(&layer));
    assert!(elsewhere.join().expect("joined"));
}
