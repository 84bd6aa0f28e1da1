//! Parameters and activations in f16 and bf16: computed as the plain run computes them, counted as what they take,
//! trained without an optimizer's numbers vanishing.

use rekindle::Dtype;
use rekindle_plan::{Chain, Planner, Request};
use rekindle_train::{
    data::{Split, TargetKind, open, settings::Source},
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, Padding, PoolSpec, SampleShape},
    session::{Event, Job, ScheduleRequest, measure, run},
    settings::{OptimizerKind, TrainSettings},
    verify::{usual_segments, verify},
};

const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];
const CLASSES: usize = 6;

fn linear(out: usize) -> LayerSpec {
    LayerSpec::Linear { out, bias: true }
}

/// Every kind of layer on images.
fn images() -> ModelSpec {
    let conv = |out| LayerSpec::Conv2d {
        out,
        kernel: [3, 3],
        stride: [1, 1],
        padding: Padding::Same,
        bias: true,
    };
    let norm = LayerSpec::BatchNorm;
    let pool = PoolSpec {
        kernel: [2, 2],
        stride: Some([2, 2]),
        padding: [0, 0],
    };
    ModelSpec {
        input: SampleShape::float([2, 8, 8]),
        layers: vec![
            conv(4),
            norm.clone(),
            LayerSpec::Relu,
            LayerSpec::Residual(vec![conv(4), norm, LayerSpec::Relu]),
            LayerSpec::MaxPool2d(pool),
            LayerSpec::Dropout { p: 0.2 },
            LayerSpec::AvgPool2d(pool),
            LayerSpec::Flatten,
            linear(16),
            LayerSpec::LayerNorm,
            LayerSpec::Gelu,
            LayerSpec::Tanh,
            linear(CLASSES),
        ],
    }
}

/// Token ids, which have no type of ours.
fn tokens() -> ModelSpec {
    ModelSpec {
        input: SampleShape::tokens([5]),
        layers: vec![
            LayerSpec::Embedding { vocab: 11, dim: 8 },
            linear(8),
            LayerSpec::Gelu,
            LayerSpec::Flatten,
            linear(CLASSES),
        ],
    }
}

fn wide(width: usize) -> ModelSpec {
    ModelSpec {
        input: SampleShape::float([width]),
        layers: vec![linear(width), LayerSpec::Gelu, linear(CLASSES)],
    }
}

fn data(model: &ModelSpec) -> Split {
    let tokens = model.input == SampleShape::tokens(model.input.dims.clone());
    let source = Source::Synthetic {
        shape: model.input.dims.clone(),
        vocab: tokens.then_some(11),
        target: TargetKind::Classes(CLASSES),
        samples: 64,
        seed: 7,
    };
    open(&source, 0.0, 1).unwrap()
}

fn settings(dtype: Dtype) -> TrainSettings {
    TrainSettings {
        steps: 3,
        batch: 4,
        seed: 11,
        dtype,
        optimizer: OptimizerKind::Adam,
        learning_rate: Some(1e-2),
        update: rekindle_train::settings::UpdateChoice::After,
        ..TrainSettings::default()
    }
}

fn uniform(segments: usize) -> ScheduleRequest {
    ScheduleRequest::Plan(Request::of(Planner::Segments(Some(segments)), None))
}

fn equal_segments(model: &ModelSpec) -> Vec<(String, ScheduleRequest)> {
    let counts = usual_segments(model.infer().unwrap().stages.len());
    let plan = |count: usize| (count.to_string(), uniform(count));
    counts.into_iter().map(plan).collect()
}

#[test]
fn segments_compute_what_the_plain_run_computes_bit_for_bit() {
    own_process!();
    for model in [images(), tokens()] {
        let data = data(&model);
        for dtype in HALVES {
            let settings = settings(dtype);
            let job = Job::new(&model, &*data.train, &settings, uniform(1));
            let plans = equal_segments(&model);
            let comparisons = verify(&job, plans, DeviceId::Cpu, &mut |_| ()).unwrap();
            assert!(comparisons.len() > 2);
            assert!(
                comparisons.iter().all(|comparison| comparison.identical),
                "{dtype}: {comparisons:?}"
            );
        }
    }
}

/// What a tensor and a node of a graph take besides values.
const TABLES: u64 = 2560;

#[test]
fn a_profile_counts_half_the_bytes() {
    own_process!();
    const WIDTH: u64 = 256;
    const BATCH: u64 = 48;
    let model = wide(WIDTH as usize);
    let data = data(&model);
    let profile = |dtype, master_weights| -> Chain {
        let settings = TrainSettings {
            batch: BATCH as usize,
            master_weights,
            ..settings(dtype)
        };
        let job = Job::new(&model, &*data.train, &settings, uniform(1));
        measure(&job, DeviceId::Cpu, &mut |_| ())
            .unwrap()
            .measured_step(&job)
            .chain
    };
    for (dtype, master_weights, width, numbers) in [
        (Dtype::F32, true, 4, 2),
        (Dtype::F16, true, 2, 3),
        (Dtype::Bf16, true, 2, 3),
        (Dtype::Bf16, false, 2, 2),
    ] {
        let chain = profile(dtype, master_weights);
        let (activation, weights) = (width * BATCH * WIDTH, width * (WIDTH * WIDTH + WIDTH));
        let near = |bytes: u64| (activation..activation + TABLES).contains(&bytes);
        for stage in &chain.stages[..2] {
            assert!(near(stage.output_bytes.0), "{dtype}: {stage:?}");
            assert!(near(stage.saved_bytes.0), "{dtype}: {stage:?}");
        }
        assert_eq!(chain.stages[0].param_bytes.0, weights, "{dtype}");
        let gradients = chain.stages[0].grad_bytes.0;
        assert!(
            gradients.abs_diff(weights) < TABLES,
            "{dtype}: {gradients} of {weights}"
        );
        // Adam's two moments are f32 always, and so is a copy of the parameters.
        let parameters = WIDTH * WIDTH + WIDTH + CLASSES as u64 * (WIDTH + 1);
        let state = chain.optimizer.state_bytes.0;
        let exact = numbers * 4 * parameters;
        assert!(
            // Of four parameters.
            (exact..exact + 4 * numbers * TABLES).contains(&state),
            "{dtype}: {state}"
        );
    }
}

/// The loss of every step.
fn losses(settings: &TrainSettings, model: &ModelSpec) -> Vec<f64> {
    let data = data(model);
    let job = Job::new(model, &*data.train, settings, uniform(2));
    let mut losses = Vec::new();
    run(&job, DeviceId::Cpu, &mut |event| {
        if let Event::Stepped { step, .. } = event {
            losses.push(step.loss);
        }
    })
    .unwrap();
    losses
}

/// Relative to f32's: a loss after 40 steps on 64 samples.
const LOSS_TOLERANCE: f64 = 0.1;

#[test]
fn optimizers_work_where_their_own_numbers_would_vanish() {
    own_process!();
    // In f16 Adam's epsilon and most squares of gradients are zero, and the norm of all gradients may be infinite.
    for clip_norm in [None, Some(1.0)] {
        let of = |dtype| {
            let settings = TrainSettings {
                steps: 40,
                batch: 16,
                clip_norm,
                ..settings(dtype)
            };
            losses(&settings, &wide(16))
        };
        let exact = of(Dtype::F32);
        let (first, last) = (exact[0], exact[39]);
        assert!(last < first / 2.0, "f32 learns: {first} to {last}");
        for dtype in HALVES {
            let rounded = of(dtype);
            let difference = (rounded[39] - last).abs() / first;
            assert!(
                difference < LOSS_TOLERANCE,
                "{dtype}, {clip_norm:?}: {rounded:?}"
            );
        }
    }
}

/// Units in the last place, of the largest value of each tensor: on a GPU another kernel may be chosen the second time.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
const GPU_ULPS: f64 = 8.0;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn a_gpu_computes_the_plain_run_or_refuses_the_type() {
    own_process!();
    use rekindle_train::session::RunError;

    let Some(info) = crate::gpu() else {
        return;
    };
    let model = wide(16);
    let data = data(&model);
    for dtype in HALVES {
        let settings = settings(dtype);
        let job = Job::new(&model, &*data.train, &settings, uniform(2));
        let plans = vec![("2 segments".into(), uniform(2))];
        match verify(&job, plans, info.device, &mut |_| ()) {
            Ok(comparisons) => {
                println!("{dtype} on {}: {comparisons:?}", info.name);
                let tolerance = GPU_ULPS * dtype.float().finfo().epsilon;
                for comparison in comparisons {
                    assert!(comparison.loss <= tolerance);
                    assert!(comparison.gradients <= tolerance);
                    assert!(comparison.state <= tolerance);
                }
            }
            Err(RunError::Device(refusal)) => {
                println!("{dtype} on {}: {refusal}", info.name);
                let others = format!("does not compute in {dtype}; it does in f32");
                assert!(refusal.to_string().contains(&others), "{refusal}");
            }
            Err(other) => panic!("{dtype}: {other}"),
        }
    }
}
