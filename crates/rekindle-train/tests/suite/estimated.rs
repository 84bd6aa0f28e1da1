//! Peaks of the step that is estimated from shapes against those of the measured one.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use rekindle::record::Kernels;
use rekindle_plan::{Planner, Request};
use rekindle_train::{
    Estimated,
    data::{TargetKind, open, settings::Source},
    device::DeviceId,
    kernels,
    model::spec::{LayerSpec, ModelSpec, Padding, PoolSpec},
    session::{Job, MeasuredStep, ScheduleRequest, measure},
    settings::{OptimizerKind, TrainSettings},
};

use crate::jobs::Optimizer;

/// Share of a step's measured peak, fixed bytes apart, by which the estimate may miss it.
const TOLERANCE: f64 = 0.05;

/// Headers and graph nodes of one stage; batch normalisation has the most.
const BOOKKEEPING_PER_STAGE: f64 = 32.0 * 1024.0;

/// What a thread lays out for the gradient of a kernel of 3 x 3: windows of 256 images of 16 x 16 numbers, for 8 outputs. The
/// count has one for every thread; on a busy machine some threads take no part.
const THREAD_BYTES: f64 = ((256 * 16 * 16 + 8) * 9 * 4) as f64;

struct Case {
    name: &'static str,
    shape: Vec<usize>,
    vocab: Option<usize>,
    layers: Vec<LayerSpec>,
    optimizer: Optimizer,
}

fn linear(out: usize) -> LayerSpec {
    LayerSpec::Linear { out, bias: true }
}

fn repeated(times: usize, layers: &[LayerSpec]) -> Vec<LayerSpec> {
    let cycle = layers.iter().cycle().take(times * layers.len());
    cycle.cloned().collect()
}

/// The stack of linear blocks, the normalised convolutions, and the tokens that the shipped configs are made of.
fn cases() -> Vec<Case> {
    let layer_norm = || LayerSpec::LayerNorm;
    let residual = |layers| LayerSpec::Residual(layers);
    let conv = |out| LayerSpec::Conv2d {
        out,
        kernel: [3, 3],
        stride: [1, 1],
        padding: Padding::Same,
        bias: false,
    };
    let pool = LayerSpec::MaxPool2d(PoolSpec {
        kernel: [2, 2],
        stride: Some([2, 2]),
        padding: [0, 0],
    });
    let batch_norm = LayerSpec::BatchNorm;
    let adam = (OptimizerKind::Adam, 0.0, 0.0);
    let sgd = (OptimizerKind::Sgd, 0.9, 0.0);
    let block = residual(vec![layer_norm(), linear(128), LayerSpec::Gelu]);
    let images = residual(vec![conv(8), batch_norm, LayerSpec::Relu]);
    let rows = residual(vec![layer_norm(), linear(64), LayerSpec::Tanh, linear(32)]);
    vec![
        Case {
            name: "linear",
            shape: vec![64],
            vocab: None,
            layers: [vec![linear(128)], repeated(6, &[block]), vec![linear(10)]].concat(),
            optimizer: adam,
        },
        Case {
            name: "wide",
            shape: vec![32],
            vocab: None,
            layers: [
                repeated(3, &[linear(1024), LayerSpec::Relu]),
                vec![LayerSpec::Dropout { p: 0.1 }, linear(10)],
            ]
            .concat(),
            optimizer: sgd,
        },
        Case {
            name: "conv",
            shape: vec![3, 16, 16],
            vocab: None,
            layers: [
                vec![conv(8)],
                repeated(4, &[images]),
                vec![pool, LayerSpec::Flatten, linear(10)],
            ]
            .concat(),
            optimizer: sgd,
        },
        Case {
            name: "tokens",
            shape: vec![16],
            vocab: Some(64),
            layers: [
                vec![LayerSpec::Embedding { vocab: 64, dim: 32 }],
                repeated(4, &[rows]),
                vec![LayerSpec::Flatten, linear(10)],
            ]
            .concat(),
            optimizer: adam,
        },
    ]
}

#[test]
fn the_estimate_predicts_peaks_as_a_profile_does() {
    own_process!();
    let mut wrong = Vec::new();
    for case in cases() {
        compare(&case, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn compare(case: &Case, wrong: &mut Vec<String>) {
    let source = Source::Synthetic {
        shape: case.shape.clone(),
        vocab: case.vocab,
        target: TargetKind::Classes(10),
        samples: 512,
        seed: 0,
    };
    let model = ModelSpec {
        input: source.sample_shape(),
        layers: case.layers.clone(),
    };
    let target = source.target();
    let split = open(&source, 0.0, 0).unwrap();
    let settings = TrainSettings {
        steps: 1,
        batch: 256,
        optimizer: case.optimizer.0,
        momentum: case.optimizer.1,
        learning_rate: Some(1e-3),
        update: rekindle_train::settings::UpdateChoice::After,
        ..TrainSettings::default()
    };
    let schedule = ScheduleRequest::Plan(Request::default());
    let job = Job::new(&model, &*split.train, &settings, schedule);
    let subject = measure(&job, DeviceId::Cpu, &mut |_| ()).unwrap();
    let measured = subject.measured_step(&job);
    let estimated = Estimated {
        model: &model,
        settings: &settings,
        target,
        ranks: 1,
        kernels: kernels(DeviceId::Cpu),
        process: None,
    };
    let estimate = estimated.estimate().unwrap();
    let estimated = MeasuredStep::estimated(&estimate, &model, &settings);
    let stages = estimated.chain.stages.len();
    for segments in [1, 2, 3, 5] {
        let step = |step: &MeasuredStep| {
            let request = Request::of(Planner::Segments(Some(segments)), None);
            let planned = step.plan(&request).unwrap();
            let (_, parts) = planned.at_peak();
            (parts.total().0 - parts.fixed.0) as f64
        };
        let (counted, measured) = (step(&estimated), step(&measured));
        println!(
            "{}, {segments} segments: estimated {counted}, measured {measured}, {:+.1}%",
            case.name,
            100.0 * (counted / measured - 1.0)
        );
        let room = TOLERANCE * measured + BOOKKEEPING_PER_STAGE * stages as f64;
        let idle_threads = match case.name {
            "conv" => (rayon_threads() - 1) as f64 * THREAD_BYTES,
            _ => 0.0,
        };
        if !(-room..=room + idle_threads).contains(&(counted - measured)) {
            wrong.push(format!(
                "{}, {segments} segments: estimated {counted}, measured {measured}",
                case.name
            ));
        }
    }
}

fn rayon_threads() -> usize {
    match kernels(DeviceId::Cpu) {
        Kernels::Host { threads, .. } => threads as usize,
        Kernels::Device => 1,
    }
}
