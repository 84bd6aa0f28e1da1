//! Operations that are nearly equal are told apart: what equal ones have in common is stored once.

use std::cell::Cell;

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Device, Distribution, Tensor},
};

fn bits(tensor: &Tensor<1>) -> Vec<u32> {
    let values = tensor.clone().without_autodiff().into_data();
    values.iter::<f32>().map(f32::to_bits).collect()
}

/// Scalars that differ in every operation, a scalar that equals nothing, and one tensor in the place of two.
#[test]
fn scalars_and_tensors_read_twice() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(4, 4).init(&device);
    let input = Tensor::<2>::random([3, 4], Distribution::Default, &device);
    let loss = |model: &Linear, input: Tensor<2>| {
        let x = model.forward(input.clone());
        let scaled = (0..40).fold(x.clone(), |x, one| x * (1.0 + 0.01 * f64::from(one)));
        let masked = |x: Tensor<2>, value: f32| {
            let never = x.clone().greater_elem(1e30);
            x.mask_fill(never, value)
        };
        let masked = masked(masked(scaled, f32::NAN), f32::NAN);
        let products = masked.clone() * masked.clone() + masked * input;
        (products + x.clone() * x).mean()
    };
    let recorded = rekindle::record(&model, &input, loss).expect("recorded");
    let step = recorded.plain().expect("planned");
    for _ in 0..4 {
        let ours = step.run(&model, input.clone()).expect("run");
        let plain = loss(&model, input.clone());
        assert_eq!(bits(&ours.loss), bits(&plain));
        let gradient = model.weight.val().grad(&plain.backward()).expect("trains");
        let ours = ours.gradients.get::<2>(model.weight.id).expect("trains");
        assert_eq!(gradient.into_data(), ours.into_data());
    }
    assert_eq!(
        step.recordings(),
        (1, 0),
        "equal recordings are found equal"
    );
}

/// burn's own hash of an operation that draws leaves the distribution's numbers out.
#[test]
fn a_distribution_that_changes_is_noticed() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(2, 2).init(&device);
    let input = Tensor::<2>::ones([3, 2], &device);
    let most = Cell::new(1.0);
    let loss = |model: &Linear, input: Tensor<2>| {
        let between = Distribution::Uniform(0.0, most.get());
        (model.forward(input.clone()) + input.random_like(between)).mean()
    };
    let recorded = rekindle::record(&model, &input, loss).expect("recorded");
    let step = recorded.plain().expect("planned");
    step.run(&model, input.clone()).expect("run");
    assert_eq!(step.recordings(), (1, 0));
    most.set(100.0);
    step.run(&model, input).expect("run");
    assert_eq!(step.recordings(), (1, 1));
}
