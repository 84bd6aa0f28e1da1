//! What a tracked forward really keeps on `flex`, against the analytic count.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use rekindle::{
    Dtype,
    activation::{Activation, ActivationMapper},
    layer::Layer,
};
use rekindle_train::model::{
    build::build,
    cost::{ElementBytes, LayerCost, ModelCost},
    spec::{ElementKind, LayerSpec, ModelSpec, Padding, PoolSpec, SampleShape},
    stages::{PlannedStage, StagePlan},
    value::Value,
};

fn live() -> i64 {
    rekindle_alloc::in_use() as i64
}

/// Tensor headers, graph nodes and map entries of one layer: 28 KB for a batch norm, a tenth of that for most.
///
/// The sizes below make the smallest term of every formula twice as large.
const OVERHEAD_BYTES: i64 = 32 * 1024;
const BATCH: usize = 64;

/// Where a stage stands.
#[derive(Clone, Copy, PartialEq, Debug)]
enum InputKind {
    /// At the start of the model: no gradient for the input.
    Untracked,
    /// At the start of a segment: the input is a leaf.
    Leaf,
    /// Inside a segment: the input is the result of another operation.
    Inner,
}

/// Makes floats into leaves that want a gradient, or into the result of an operation on such leaves.
struct Track {
    leaf: bool,
}

impl ActivationMapper for Track {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let tensor = tensor.require_grad();
        if self.leaf {
            tensor
        } else {
            tensor.mul_scalar(1.0)
        }
    }
}

fn input(shape: &SampleShape) -> Value {
    let mut dims = vec![BATCH];
    dims.extend(&shape.dims);
    let count = dims.iter().product::<usize>();
    let device = Device::flex().autodiff();
    match shape.kind {
        ElementKind::Float => {
            let values = (0..count)
                .map(|index| (index % 97) as f32 / 97.0 - 0.4)
                .collect();
            Value::from_floats(values, &dims, &device).unwrap()
        }
        ElementKind::Token => {
            let ids = (0..count).map(|index| (index % 7) as i32).collect();
            Value::from_tokens(ids, &dims, &device).unwrap()
        }
    }
}

fn sum(value: Value) -> Tensor<1> {
    match value {
        Value::Float2(tensor) => tensor.sum(),
        Value::Float3(tensor) => tensor.sum(),
        other => other.into_float4().unwrap().sum(),
    }
}

struct Measured {
    /// What parameters and running statistics take between two steps.
    resident: i64,
    /// What one tracked forward keeps.
    saved: i64,
}

/// Runs the last stage of a model twice: running statistics have an update waiting from the first step on.
fn measure(model: &ModelSpec, plan: &StagePlan, input_kind: InputKind) -> Measured {
    let empty = live();
    let stage = build(model, plan, Dtype::F32, &Device::flex().autodiff())
        .unwrap()
        .pop()
        .unwrap();
    let step = || {
        let given = match input_kind {
            InputKind::Untracked => input(stage.input()),
            InputKind::Leaf => input(stage.input()).map(&mut Track { leaf: true }),
            InputKind::Inner => input(stage.input()).map(&mut Track { leaf: false }),
        };
        let before = live();
        let output = stage.forward(given.clone());
        let saved = live() - before;
        if input_kind != InputKind::Untracked || !stage.ops().is_empty() {
            // The backward frees the graph.
            drop(sum(output).backward());
        }
        saved
    };
    step();
    let saved = step();
    Measured {
        resident: live() - empty,
        saved,
    }
}

/// A model whose last stage holds `layers`. On a tracked input, a layer with few parameters goes before it.
fn model(
    shape: &SampleShape,
    layers: &[LayerSpec],
    tracked: bool,
) -> (ModelSpec, StagePlan, LayerCost) {
    let before = tracked.then_some(LayerSpec::LayerNorm { epsilon: 1e-5 });
    let model = ModelSpec {
        input: shape.clone(),
        layers: before.into_iter().chain(layers.iter().cloned()).collect(),
    };
    let inferred = model.infer().unwrap();
    // One stage for all of them, whatever the planner would do, to see what is alive between them.
    let stage = |layers: Range<usize>| PlannedStage {
        input: inferred.layers[layers.start].input.clone(),
        output: inferred.layers[layers.end - 1].output.clone(),
        name: String::new(),
        param_count: 0,
        layers,
    };
    let count = model.layers.len();
    let stages = if tracked {
        vec![stage(0..1), stage(1..count)]
    } else {
        vec![stage(0..count)]
    };
    let plan = StagePlan { stages };
    let cost = ModelCost::new(&model, &inferred, &plan, BATCH, ElementBytes::FLEX);
    let last = *cost.stages.last().unwrap();
    (model, plan, last)
}

fn check(shape: &SampleShape, layers: &[LayerSpec], wrong: &mut Vec<String>) {
    let kinds = match shape.kind {
        ElementKind::Float => vec![InputKind::Untracked, InputKind::Leaf, InputKind::Inner],
        ElementKind::Token => vec![InputKind::Untracked],
    };
    for kind in kinds {
        let (model, plan, cost) = model(shape, layers, kind != InputKind::Untracked);
        let names: Vec<_> = layers.iter().map(LayerSpec::kind).collect();
        let saved = cost.saved_bytes as i64;
        let resident = (cost.param_bytes + cost.state_bytes) as i64;
        let tolerance = OVERHEAD_BYTES * layers.len() as i64;
        let fits = |measured: &Measured| {
            (measured.saved - saved).abs() <= tolerance
                && (measured.resident - resident).abs() <= tolerance
        };
        // A thread allocates scratch in its first run of a kernel and keeps it.
        measure(&model, &plan, kind);
        let measured = measure(&model, &plan, kind);
        if !fits(&measured) {
            wrong.push(format!(
                "{names:?} on {shape}, {kind:?}: saved {} counted as {saved}, resident {} counted as {resident}",
                measured.saved, measured.resident
            ));
        }
    }
}

#[test]
fn the_count_is_what_stays_alive() {
    own_process!();
    // Which of several threads runs a kernel for the first time is chance.
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build_global()
        .unwrap();
    let features = SampleShape::float([1024]);
    let wide = SampleShape::float([8192]);
    let rows = SampleShape::float([256, 8]);
    let image = SampleShape::float([8, 16, 16]);
    let channels = SampleShape::float([1024, 1, 4]);
    let pool = PoolSpec {
        kernel: [2, 2],
        stride: [2, 2],
        padding: [0, 0],
    };
    let padded_pool = PoolSpec {
        kernel: [3, 3],
        stride: [1, 2],
        padding: [1, 1],
    };
    let linear = |out| LayerSpec::Linear { out, bias: true };
    let conv = |out, stride, padding| LayerSpec::Conv2d {
        out,
        kernel: [3, 3],
        stride,
        padding,
        bias: true,
    };
    let batch_norm = || LayerSpec::BatchNorm {
        epsilon: 1e-5,
        momentum: 0.1,
    };
    let layer_norm = || LayerSpec::LayerNorm { epsilon: 1e-5 };
    let dropout = |p| LayerSpec::Dropout { p };
    let residual = |layers| LayerSpec::Residual { layers };
    let embedding = || LayerSpec::Embedding {
        vocab: 512,
        dim: 32,
    };

    let places = SampleShape::float([48, 32]);
    let attention = |causal| LayerSpec::Attention { heads: 4, causal };

    let one_layer = vec![
        (&places, LayerSpec::Positions),
        (&places, attention(true)),
        (&places, attention(false)),
        (&features, linear(512)),
        (&rows, linear(24)),
        (&image, linear(24)),
        (
            &rows,
            LayerSpec::Linear {
                out: 24,
                bias: false,
            },
        ),
        (&image, conv(12, [1, 1], Padding::Same)),
        (&image, conv(12, [2, 1], Padding::Same)),
        (&image, conv(12, [1, 1], Padding::Valid)),
        (&image, conv(12, [1, 1], Padding::Explicit([2, 0]))),
        (
            &image,
            LayerSpec::Conv2d {
                out: 12,
                kernel: [1, 1],
                stride: [1, 1],
                padding: Padding::Valid,
                bias: false,
            },
        ),
        (&image, LayerSpec::MaxPool2d(pool)),
        (&image, LayerSpec::MaxPool2d(padded_pool)),
        (&image, LayerSpec::AvgPool2d(pool)),
        (&image, LayerSpec::AvgPool2d(padded_pool)),
        (&image, LayerSpec::Flatten),
        (
            &image,
            LayerSpec::Reshape {
                shape: vec![16, 128],
            },
        ),
        (&features, LayerSpec::Relu),
        (&rows, LayerSpec::Gelu),
        (&image, LayerSpec::Tanh),
        (&features, LayerSpec::Sigmoid),
        (&rows, LayerSpec::Softmax),
        (&channels, LayerSpec::Softmax),
        (&features, dropout(0.5)),
        (&image, dropout(0.1)),
        (&features, dropout(0.0)),
        (&wide, batch_norm()),
        (&wide, residual(vec![batch_norm()])),
        (&rows, batch_norm()),
        (&channels, batch_norm()),
        (&image, batch_norm()),
        (&rows, layer_norm()),
        (&channels, layer_norm()),
        (&features, layer_norm()),
        (
            &image,
            LayerSpec::ZeroPad {
                padding: [1, 2, 3, 4],
            },
        ),
        (&features, residual(vec![linear(1024)])),
        (
            &rows,
            residual(vec![
                layer_norm(),
                linear(16),
                LayerSpec::Gelu,
                dropout(0.1),
                linear(8),
            ]),
        ),
        (&image, residual(vec![dropout(0.1), LayerSpec::Relu])),
        (
            &image,
            residual(vec![
                residual(vec![conv(8, [1, 1], Padding::Same), batch_norm()]),
                LayerSpec::Relu,
            ]),
        ),
        (
            &rows,
            residual(vec![
                LayerSpec::Flatten,
                LayerSpec::Reshape {
                    shape: vec![256, 8],
                },
            ]),
        ),
    ];
    let several_layers = vec![
        (&places, vec![layer_norm(), attention(true)]),
        (
            &image,
            vec![
                LayerSpec::ZeroPad { padding: [1; 4] },
                conv(8, [1, 1], Padding::Valid),
                LayerSpec::Relu,
            ],
        ),
        (
            &image,
            vec![
                conv(8, [1, 1], Padding::Same),
                dropout(0.5),
                LayerSpec::Flatten,
            ],
        ),
        (
            &image,
            vec![
                LayerSpec::MaxPool2d(pool),
                LayerSpec::Flatten,
                linear(64),
                LayerSpec::Softmax,
            ],
        ),
        (
            &features,
            vec![linear(1024), LayerSpec::Gelu, linear(1024), LayerSpec::Gelu],
        ),
        (
            &features,
            vec![
                LayerSpec::Relu,
                dropout(0.5),
                batch_norm(),
                LayerSpec::Tanh,
                layer_norm(),
            ],
        ),
        (
            &image,
            vec![
                LayerSpec::Flatten,
                LayerSpec::Relu,
                LayerSpec::Reshape {
                    shape: vec![16, 128],
                },
                linear(8),
            ],
        ),
    ];
    let tokens = SampleShape::tokens([256]);
    let token_grid = SampleShape::tokens([16, 16]);
    let on_tokens = vec![
        (&tokens, vec![embedding()]),
        (&token_grid, vec![embedding()]),
        (
            &token_grid,
            vec![LayerSpec::Flatten, embedding(), LayerSpec::Flatten],
        ),
        (&tokens, vec![embedding(), layer_norm(), linear(16)]),
        (&tokens, vec![embedding(), LayerSpec::Positions]),
        (
            &tokens,
            vec![embedding(), LayerSpec::Unembedding { vocab: 512 }],
        ),
    ];

    let mut wrong = Vec::new();
    for (shape, layer) in one_layer {
        check(shape, &[layer], &mut wrong);
    }
    for (shape, layers) in several_layers.into_iter().chain(on_tokens) {
        check(shape, &layers, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
