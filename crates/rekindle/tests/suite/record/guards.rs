//! A step that is not the recorded one any more is noticed: numbers that change, batches of other shapes.

use std::cell::Cell;

use burn::{
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Tensor},
};

fn weight_bits(gradients: &GradientsParams, layer: &Linear) -> Vec<u32> {
    let gradient = gradients.get::<2>(layer.weight.id).expect("a gradient");
    gradient
        .into_data()
        .iter::<f32>()
        .map(f32::to_bits)
        .collect()
}

#[test]
fn a_loss_weight_that_changes_each_step_is_never_silently_wrong() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 5).init(&device);
    let weight = Cell::new(1.0);
    let loss =
        |model: &Linear, input: Tensor<2>| model.forward(input).square().mean() * weight.get();
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &device);
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    for place in 0..8 {
        // The same for two steps, then another in every step.
        weight.set(if place < 2 { 1.0 } else { f64::from(place) });
        let output = step.run(&model, input.clone()).expect("run");
        let plain = GradientsParams::from_grads(loss(&model, input.clone()).backward(), &model);
        assert_eq!(
            weight_bits(&output.gradients, &model),
            weight_bits(&plain, &model),
            "step {place}"
        );
    }
    assert_eq!(
        step.recordings().1,
        6,
        "six steps differ from the ones before"
    );
}

#[test]
fn batches_of_other_shapes_get_plans_of_their_own_that_are_kept() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 5).init(&device);
    let loss = |model: &Linear, input: Tensor<2>| model.forward(input).square().mean();
    let batch = |rows| Tensor::<2>::random([rows, 6], Distribution::Default, &device);
    let first = batch(8);
    let step = rekindle::record(&model, &first, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    for rows in [8, 3, 8, 3, 5] {
        let input = batch(rows);
        let output = step.run(&model, input.clone()).expect("run");
        let plain = GradientsParams::from_grads(loss(&model, input).backward(), &model);
        assert_eq!(
            weight_bits(&output.gradients, &model),
            weight_bits(&plain, &model),
            "{rows} rows"
        );
    }
    assert_eq!(step.recordings(), (3, 0));
}
