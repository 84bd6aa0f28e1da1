//! What a step hands out besides the parameters' gradients.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Bool, Device, Distribution, Int, Tensor},
};
use rekindle::record::RecordError;

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    norm: BatchNorm,
    shared: Linear,
    never: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(5, 6).init(device),
            norm: BatchNormConfig::new(6).init(device),
            shared: LinearConfig::new(6, 6).init(device),
            never: LinearConfig::new(6, 6).init(device),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let x = self.norm.forward(self.first.forward(input));
        // One layer three times.
        (0..3).fold(x, |x, _| self.shared.forward(x).tanh())
    }
}

type Batch = (Tensor<2>, Tensor<2, Bool>, Tensor<1, Int>);

fn batch(device: &Device) -> Batch {
    let input = Tensor::random([7, 5], Distribution::Normal(0.0, 1.0), device);
    let mask = Tensor::<2>::random([7, 6], Distribution::Default, device).greater_elem(0.5);
    (
        input,
        mask,
        Tensor::from_ints([0, 1, 2, 3, 4, 5, 6], device),
    )
}

fn step(
    model: &Model,
    (input, mask, order): Batch,
) -> (Tensor<1>, (Tensor<2>, Tensor<1, Int>, Tensor<2>)) {
    let output = model.forward(input.clone()).mask_fill(mask, 0.0);
    let picked = output.clone().select(0, order.clone());
    (picked.square().mean(), (output, order, input))
}

#[test]
fn values_that_pass_through_and_a_layer_that_is_used_twice() {
    let device = Device::flex().autodiff();
    let model = Model::new(&device);
    let (input, mask, order) = batch(&device);
    let given = (input.clone(), mask.clone(), order.clone());
    let planned = rekindle::record(&model, &given, step)
        .expect("recorded")
        .plain()
        .expect("planned");

    let reference = model.valid().train();
    let (loss, (output, _, _)) = step(&reference, given.clone());
    let (loss_data, output) = (loss.clone().into_data(), output.into_data());
    let gradients = loss.backward();

    let ours = planned.run(&model, given).expect("run");
    assert_eq!(ours.loss.into_data(), loss_data);
    assert_eq!(ours.auxiliary.0.into_data(), output);
    assert_eq!(ours.auxiliary.1.into_data(), order.into_data());
    assert_eq!(ours.auxiliary.2.into_data(), input.into_data());
    let plain = GradientsParams::from_grads(gradients, &reference);
    assert_eq!(ours.gradients.len(), plain.len());
    assert!(ours.gradients.get::<2>(model.never.weight.id).is_none());
    let shared = |gradients: &GradientsParams| {
        gradients
            .get::<2>(model.shared.weight.id)
            .map(Tensor::into_data)
    };
    assert_eq!(shared(&ours.gradients), shared(&plain));

    // The running statistics of the model that was given have moved, once.
    let mean = |model: &Model| model.norm.running_mean.value_sync().into_data();
    assert_eq!(mean(&model), mean(&reference));
    assert_ne!(mean(&model), mean(&Model::new(&device)));
}

#[test]
fn a_value_that_is_not_finite_changes_nothing() {
    let device = Device::flex().autodiff();
    let model = Model::new(&device);
    let (input, mask, order) = batch(&device);
    let given = (input.clone(), mask.clone(), order.clone());
    let mean = |model: &Model| model.norm.running_mean.value_sync().into_data();
    let before = mean(&model);
    let planned = rekindle::record(&model, &given, step)
        .expect("recorded")
        .plain()
        .expect("planned");
    let bad = (input.clone() / 0.0, mask.clone(), order.clone());
    let error = planned.run(&model, bad).err();
    assert_eq!(
        error,
        Some(RecordError::NotFinite {
            what: "the loss".into()
        })
    );
    assert_eq!(mean(&model), before);

    // The square root's slope at 0 is infinite, its value is not.
    let root =
        |model: &Linear, input: Tensor<2>| model.forward(input).mul_scalar(0.0).sqrt().mean();
    let linear = LinearConfig::new(5, 6).init(&device);
    let planned = rekindle::record(&linear, &input, root)
        .expect("recorded")
        .plain()
        .expect("planned");
    let error = planned.run(&linear, input.clone()).err();
    assert_eq!(
        error,
        Some(RecordError::NotFinite {
            what: "the gradient of `weight`".into()
        })
    );
    let unchecked = rekindle::record(&linear, &input, root)
        .expect("recorded")
        .with_finite_check(false);
    assert!(
        unchecked
            .plain()
            .expect("planned")
            .run(&linear, input)
            .is_ok()
    );
}

#[test]
fn another_model_is_refused_and_a_clone_is_not() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(5, 6).init(&device);
    let input = Tensor::<2>::ones([2, 5], &device);
    let loss = |model: &Linear, input: Tensor<2>| model.forward(input).mean();
    let planned = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    assert!(planned.run(&model.clone(), input.clone()).is_ok());
    let other = LinearConfig::new(5, 6).init(&device);
    let error = planned.run(&other, input).err();
    assert!(
        matches!(error, Some(RecordError::Parameter { .. })),
        "{error:?}"
    );
}

#[test]
fn a_parameter_may_be_returned() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(5, 6).init(&device);
    let input = Tensor::<2>::ones([2, 5], &device);
    let loss = |model: &Linear, input: Tensor<2>| (model.forward(input).mean(), model.weight.val());
    let planned = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let output = planned.run(&model, input).expect("run");
    assert_eq!(output.auxiliary.into_data(), model.weight.val().into_data());
}

/// Positions and comparisons that the step makes itself have the types that the model's device gives them.
#[test]
fn positions_compare_with_the_batchs_integers() {
    let device = Device::flex().autodiff();
    let layer = LinearConfig::new(5, 3).init(&device);
    let input = Tensor::<2>::random([7, 5], Distribution::Normal(0.0, 1.0), &device);
    let classes = Tensor::<1, Int>::from_ints([0, 1, 2, 0, 1, 2, 0], &device);
    let correct = |layer: &Linear, (input, classes): (Tensor<2>, Tensor<1, Int>)| {
        let output = layer.forward(input);
        let predicted = output.clone().argmax(1).reshape([7]);
        let correct = predicted.equal(classes).int().sum();
        (output.square().mean(), correct)
    };
    let batch = (input, classes);
    let recorded = rekindle::record(&layer, &batch, correct).expect("recorded");
    let step = recorded.plain().expect("planned");
    let ours = step.run(&layer, batch.clone()).expect("run");
    let (_, plain) = correct(&layer, batch);
    assert_eq!(ours.auxiliary.into_data(), plain.into_data());
}
