//! `checkpoint_sequential` against independent expectations: counted forwards, finite differences, frozen and shared
//! parameters, odd chains beside a plain loop, errors.

mod odd;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use burn::{
    module::{Module, Param},
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    store::ModuleRecord,
    tensor::{Device, Distribution, Tensor, TensorData, activation::tanh},
};
use rekindle::{Layer, Sequential, checkpoint_sequential};

const WIDTH: usize = 6;
const BATCH: usize = 3;

/// A linear layer with tanh that counts how often it runs.
#[derive(Module, Debug)]
struct Counting {
    linear: Linear,
    #[module(skip)]
    runs: Arc<AtomicUsize>,
}

impl Counting {
    fn new(device: &Device) -> Self {
        Self {
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
            runs: Arc::default(),
        }
    }
}

impl Layer for Counting {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.runs.fetch_add(1, Relaxed);
        tanh(self.linear.forward(input))
    }
}

fn model(depth: usize) -> Sequential<Counting> {
    (0..depth)
        .map(|_| Counting::new(&Device::flex().autodiff()))
        .collect::<Vec<_>>()
        .into()
}

fn input() -> Tensor<2> {
    Tensor::random(
        [BATCH, WIDTH],
        Distribution::Default,
        &Device::flex().autodiff(),
    )
}

fn mean_square(output: Tensor<2>) -> Tensor<1> {
    output.powf_scalar(2.0).mean()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn stages_run_twice_but_those_of_the_last_segment_once() {
    let model = model(7);
    for (segments, expected) in [
        (1, [1, 1, 1, 1, 1, 1, 1]),
        (2, [2, 2, 2, 1, 1, 1, 1]),
        (3, [2, 2, 2, 2, 1, 1, 1]),
        (7, [2, 2, 2, 2, 2, 2, 1]),
    ] {
        for layer in &model.layers {
            layer.runs.store(0, Relaxed);
        }
        checkpoint_sequential(&model, segments, input(), mean_square).expect("fits");
        let counted: Vec<usize> = model
            .layers
            .iter()
            .map(|layer| layer.runs.load(Relaxed))
            .collect();
        assert_eq!(counted, expected, "{segments} segments");
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    /// Central differences of an f32 loss: truncation ~ step^2, rounding ~ 1e-7 / step.
    const STEP: f32 = 1e-2;
    const TOLERANCE: f32 = 1e-4;

    let model = model(4);
    let input = input();
    let output = checkpoint_sequential(&model, 3, input.clone(), mean_square).expect("fits");
    let loss_with = |layer: usize, weights: Vec<f32>| -> f32 {
        let mut layers = model.layers.to_vec();
        let data = TensorData::new(weights, [WIDTH, WIDTH]);
        layers[layer].linear.weight =
            Param::from_tensor(Tensor::from_data(data, &Device::flex().autodiff()));
        let output = Sequential::new(layers).forward(input.clone());
        values(mean_square(output))[0]
    };
    for (index, layer) in model.layers.iter().enumerate() {
        let weights = values(layer.linear.weight.val());
        let gradient = output
            .gradients
            .get::<2>(layer.linear.weight.id)
            .expect("a gradient");
        let gradient = values(gradient);
        for entry in [0, WIDTH + 2, WIDTH * WIDTH - 1] {
            let shifted = |by: f32| {
                let mut weights = weights.clone();
                weights[entry] += by;
                loss_with(index, weights)
            };
            let slope = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
            let difference = (slope - gradient[entry]).abs();
            assert!(
                difference < TOLERANCE,
                "layer {index}, weight {entry}: {slope} against {}",
                gradient[entry]
            );
        }
    }
}

#[test]
fn frozen_parameters_get_no_gradient() {
    let mut layers = model(4).layers.to_vec();
    layers[0] = layers[0].clone().no_grad();
    layers[2] = layers[2].clone().no_grad();
    let model = Sequential::new(layers);
    let input = input();
    let plain = mean_square(model.forward(input.clone()));
    let plain = GradientsParams::from_grads(plain.backward(), &model);
    for segments in 1..=4 {
        let output =
            checkpoint_sequential(&model, segments, input.clone(), mean_square).expect("fits");
        assert_eq!(output.gradients.len(), plain.len());
        for (index, layer) in model.layers.iter().enumerate() {
            let of = |gradients: &GradientsParams| {
                gradients.get::<2>(layer.linear.weight.id).map(values)
            };
            assert_eq!(of(&output.gradients).is_some(), index % 2 == 1);
            assert_eq!(
                of(&output.gradients),
                of(&plain),
                "{segments} segments, layer {index}"
            );
        }
    }
}

/// No gradient is wanted below the first segment that trains: nothing of it runs again.
#[test]
fn frozen_first_segments_are_not_recomputed() {
    for (frozen, expected) in [
        (0, [2, 2, 2, 2, 1, 1]),
        (1, [2, 2, 2, 2, 1, 1]),
        (2, [1, 1, 2, 2, 1, 1]),
        (3, [1, 1, 2, 2, 1, 1]),
        (4, [1, 1, 1, 1, 1, 1]),
        (6, [1, 1, 1, 1, 1, 1]),
    ] {
        let mut layers = model(6).layers;
        for layer in &mut layers[..frozen] {
            *layer = layer.clone().no_grad();
        }
        let model = Sequential::new(layers);
        let output = checkpoint_sequential(&model, 3, input(), mean_square).expect("fits");
        let counted: Vec<usize> = model
            .layers
            .iter()
            .map(|layer| layer.runs.load(Relaxed))
            .collect();
        assert_eq!(counted, expected, "{frozen} frozen");
        assert_eq!(output.gradients.len(), 2 * (6 - frozen));
    }
}

#[test]
fn gradients_of_a_layer_used_twice_add_up() {
    /// Two sums of the same products in another order.
    const TOLERANCE: f32 = 1e-6;

    let shared = Counting::new(&Device::flex().autodiff());
    let model = Sequential::new(vec![
        shared.clone(),
        Counting::new(&Device::flex().autodiff()),
        shared.clone(),
        Counting::new(&Device::flex().autodiff()),
    ]);
    let input = input();
    let plain = mean_square(model.forward(input.clone()));
    let plain = GradientsParams::from_grads(plain.backward(), &model);
    let expected = values(plain.get::<2>(shared.linear.weight.id).expect("a gradient"));
    for segments in 1..=4 {
        let output =
            checkpoint_sequential(&model, segments, input.clone(), mean_square).expect("fits");
        let actual = output.gradients.get::<2>(shared.linear.weight.id);
        let actual = values(actual.expect("a gradient"));
        for (actual, expected) in actual.iter().zip(&expected) {
            assert!((actual - expected).abs() < TOLERANCE, "{segments} segments");
        }
    }
}

#[test]
fn the_loss_closure_can_return_more_than_the_loss() {
    let model = model(3);
    let input = input();
    let output = checkpoint_sequential(&model, 2, input.clone(), |output: Tensor<2>| {
        (mean_square(output.clone()), output)
    })
    .expect("fits");
    assert_eq!(values(output.auxiliary), values(model.forward(input)));
}

#[test]
fn what_does_not_fit_is_an_error_with_both_numbers() {
    let model = model(3);
    let text = |segments| {
        checkpoint_sequential(&model, segments, input(), mean_square)
            .expect_err("an error")
            .to_string()
    };
    assert!(text(0).contains("0 segments") && text(0).contains("3 layers"));
    assert!(text(4).contains("4 segments") && text(4).contains("3 layers"));

    let vector = checkpoint_sequential(&model, 1, input(), |output: Tensor<2>| {
        output.sum_dim(1).reshape([BATCH as i32])
    });
    let error = vector.expect_err("an error").to_string();
    assert!(error.contains("shape [3]"), "{error}");
}

#[test]
fn wrapping_layers_changes_no_record() {
    #[derive(Module, Debug)]
    struct Before {
        layers: Vec<Linear>,
    }
    #[derive(Module, Debug)]
    struct After {
        layers: Sequential<Linear>,
    }
    let device = Device::flex().autodiff();
    let make = || -> Vec<Linear> {
        (0..3)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device))
            .collect()
    };
    let before = Before { layers: make() };
    let bytes = before.clone().into_record().into_bytes().expect("recorded");
    let after = After {
        layers: Sequential::new(make()),
    };
    let after = after.load_record(ModuleRecord::from_bytes(bytes).expect("a record"));
    for (before, after) in before.layers.iter().zip(&after.layers.layers) {
        assert_eq!(before.weight.id, after.weight.id);
        assert_eq!(values(before.weight.val()), values(after.weight.val()));
    }
}
