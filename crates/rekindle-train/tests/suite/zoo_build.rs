//! What a built model starts from.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    Dtype,
    layer::Layer,
    meter::{HostMeter, Meter},
};
use rekindle_train::model::{
    spec::{LayerSpec, ModelSpec, Padding, SampleShape},
    stage::Stage,
    value::Value,
};

/// Names and values of all parameters and statistics.
#[derive(Default)]
struct Parameters {
    path: Vec<String>,
    found: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((
            self.path.join("."),
            param.val().into_data().try_to_vec().unwrap(),
        ));
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}

fn parameters(module: &impl Module) -> Vec<(String, Vec<f32>)> {
    let mut parameters = Parameters::default();
    module.visit(&mut parameters);
    parameters.found
}

fn seeded(model: &ModelSpec, seed: u64) -> Vec<Stage> {
    let device = Device::flex().autodiff();
    device.seed(seed);
    model.blueprint().unwrap().build(Dtype::F32, &device)
}

#[test]
fn a_built_model_is_reproducible_complete_and_keeps_its_signal() {
    own_process!();
    draws_follow_the_seed_alone();
    parameters_are_counted_named_and_shared();
    linear_stacks_start_as_orthogonal_maps();
    a_tall_layer_takes_its_own_size_while_it_is_drawn();
    deep_stacks_keep_their_signal(&LayerSpec::Gelu, 128, 2.0);
    deep_stacks_keep_their_signal(&LayerSpec::Relu, 128, 2.0);
    // Without pairs, the size of a signal wanders in a narrow stack.
    deep_stacks_keep_their_signal(&LayerSpec::Gelu, 127, 30.0);
}

fn on_tokens() -> ModelSpec {
    let norm = LayerSpec::LayerNorm;
    let attention = LayerSpec::Attention {
        heads: 1,
        causal: true,
    };
    let layers = vec![
        LayerSpec::Embedding { vocab: 11, dim: 5 },
        LayerSpec::Positions,
        LayerSpec::Residual(vec![norm, attention]),
        LayerSpec::Unembedding,
    ];
    ModelSpec {
        input: SampleShape::tokens([6]),
        layers,
    }
}

fn on_images() -> ModelSpec {
    let conv = LayerSpec::Conv2d {
        out: 4,
        kernel: [3, 3],
        stride: [1, 1],
        padding: Padding::Same,
        bias: true,
    };
    let inner = vec![conv.clone(), LayerSpec::BatchNorm, LayerSpec::Gelu];
    let layers = vec![
        LayerSpec::LayerNorm,
        conv,
        LayerSpec::Residual(vec![LayerSpec::Residual(inner)]),
        LayerSpec::Flatten,
        LayerSpec::Linear {
            out: 3,
            bias: false,
        },
    ];
    ModelSpec {
        input: SampleShape::float([1, 6, 5]),
        layers,
    }
}

fn draws_follow_the_seed_alone() {
    for model in [on_tokens(), on_images()] {
        let first = parameters(&seeded(&model, 7));
        assert_eq!(first, parameters(&seeded(&model, 7)));
        assert_ne!(first, parameters(&seeded(&model, 8)));
    }
}

fn parameters_are_counted_named_and_shared() {
    for (model, first, other) in [
        (
            on_tokens(),
            "0.ops.0.Embedding.weight",
            "3.ops.0.Unembedding.weight",
        ),
        (
            on_images(),
            "0.ops.0.LayerNorm.gamma",
            "2.ops.0.Residual.0.Residual.1.BatchNorm.running_mean",
        ),
    ] {
        let shape = model.infer().unwrap();
        let stages = seeded(&model, 1);
        let names: Vec<String> = parameters(&stages)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names[0], first);
        assert!(names.iter().any(|name| name == other), "{names:?}");

        for (stage, named) in stages.iter().zip(&shape.stages) {
            let trained = parameters(stage)
                .into_iter()
                .filter(|(name, _)| !name.contains("running") && !name.contains("Unembedding"));
            let layers = shape.layers[named.layers.clone()].iter();
            assert_eq!(
                trained.map(|(_, values)| values.len() as u64).sum::<u64>(),
                layers.map(|layer| layer.param_count).sum::<u64>(),
                "{}",
                named.name
            );
        }
        assert_eq!(parameters(&stages), parameters(&stages.clone()));
        assert_eq!(parameters(&stages), parameters(&stages.valid()));
        let other = seeded(&model, 2).load_record(stages.clone().into_record());
        assert_eq!(parameters(&stages), parameters(&other));
    }
}

/// Rounding of sums of a few dozen products of `f32`, over a few layers.
const ROUNDING: f32 = 1e-5;

/// A GELU stack that ends in the difference of the pairs gives an orthogonal map of its input.
fn linear_stacks_start_as_orthogonal_maps() {
    let (inputs, width) = (24, 48);
    let linear = LayerSpec::Linear {
        out: width,
        bias: true,
    };
    let layers = [linear, LayerSpec::Gelu]
        .into_iter()
        .cycle()
        .take(12)
        .collect();
    let model = ModelSpec {
        input: SampleShape::float([inputs]),
        layers,
    };
    let device = Device::flex().autodiff();
    let mut value = Value::from(Tensor::<2>::eye(inputs, &device));
    for stage in &seeded(&model, 5) {
        value = stage.forward(value);
    }
    let output = value.into_float2();
    let half = width / 2;
    let map = output.clone().narrow(1, 0, half) - output.narrow(1, half, half);
    let off = map.clone().matmul(map.transpose()) - Tensor::eye(inputs, &device);
    let off: f32 = off.abs().max().into_scalar();
    assert!(off < ROUNDING, "off by {off}");
}

/// As a part of a square orthogonal matrix, 64 MiB, it would take 128 times its 512 KiB.
fn a_tall_layer_takes_its_own_size_while_it_is_drawn() {
    let (inputs, out) = (4096, 32);
    let linear = LayerSpec::Linear { out, bias: false };
    let model = ModelSpec {
        input: SampleShape::float([inputs]),
        layers: vec![linear, LayerSpec::Relu],
    };
    let meter = HostMeter::new().unwrap();
    let before = meter.read().in_use_bytes;
    meter.start_interval();
    let built = seeded(&model, 5);
    let taken = meter.read().peak_in_use_bytes - before;
    let weight = (inputs * out * size_of::<f32>()) as u64;
    assert!((weight..3 * weight).contains(&taken.0), "{taken}");
    drop(built);
}

/// 63 layers of one activation keep the size of values and gradients within a factor.
fn deep_stacks_keep_their_signal(activation: &LayerSpec, width: usize, factor: f32) {
    let (depth, batch) = (63, 8);
    let layers = (0..depth)
        .flat_map(|_| {
            [
                LayerSpec::Linear {
                    out: width,
                    bias: true,
                },
                activation.clone(),
            ]
        })
        .collect();
    let model = ModelSpec {
        input: SampleShape::float([width]),
        layers,
    };
    let stages = seeded(&model, 3);
    let device = Device::flex().autodiff();
    let normal = Distribution::Normal(0.0, 1.0);
    let input = Tensor::<2>::random([batch, width], normal, &device).require_grad();
    let size = |tensor: Tensor<2>| tensor.powi_scalar(2).mean().into_scalar::<f32>().sqrt();

    let mut value = Value::from(input.clone());
    for stage in &stages {
        value = stage.forward(value);
    }
    let output = value.into_float2();
    // ReLU and GELU keep about half of the square.
    let kept = 2.0_f32.sqrt() * size(output.clone().inner()) / size(input.clone().inner());
    assert!(
        (1.0 / factor..factor).contains(&kept),
        "{} {width}: values {kept}",
        activation.kind()
    );

    // A gradient of size 1 at the output; what ReLU and GELU let through is half of its square.
    let upstream = output.random_like(normal);
    let gradients = (output * upstream).sum().backward();
    let kept = 2.0_f32.sqrt() * size(input.grad(&gradients).unwrap());
    assert!(
        (1.0 / factor..factor).contains(&kept),
        "{} {width}: gradients {kept}",
        activation.kind()
    );
}
