//! Half types as they are trained: master weights, dynamic scales of the loss and the steps they skip, sums of gradients in
//! `f32`, and what all that takes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;

use rekindle::Dtype;
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    data::{Split, TargetKind, batch::Numbers, open, settings::Source, text::Predict},
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::RunRecord,
    run_dir::{RunDir, SnapshotEvery},
    session::{Infeasible, Job, RunError, ScheduleRequest, measure, run},
    settings::{Accumulate, LossChunks, OnNonFinite, OptimizerKind, TrainSettings},
};

use crate::{
    jobs::{Optimizer, Steps, classifier, processor, steps, through, vectors},
    nonfinite::Look,
    resume::{ADAM, conv_net, data, settings},
};

const SGD: Optimizer = (OptimizerKind::Sgd, 0.0, 0.0);

fn plain() -> ScheduleRequest {
    ScheduleRequest::Plan(Request::of(Planner::None, None))
}

#[test]
fn an_overflow_is_skipped_and_halves_the_scale() {
    own_process!();
    for accumulate in [1, 2] {
        let (model, folder) = (conv_net(), tempfile::tempdir().unwrap());
        let data = data(&model, None);
        let settings = TrainSettings {
            steps: 8,
            // The gradient of a logit is up to half the scale: times an activation above 2 it is too large for `f16`.
            batch: 2,
            accumulate: Accumulate::Parts(accumulate),
            dtype: Dtype::F16,
            eval_every: None,
            ..settings(ADAM)
        };
        assert_eq!(settings.on_nonfinite, OnNonFinite::Stop);
        let job = Job {
            run_dir: Some(RunDir::New(folder.path().to_path_buf())),
            snapshot_every: SnapshotEvery::Steps(1),
            ..Job::new(&model, &*data.train, &settings, plain())
        };
        let mut look = Look::new(folder.path());
        let record = run(&job, DeviceId::Cpu, &mut |event| look.tell(event)).unwrap();

        let mut scale = 65536.0;
        let mut skipped = 0;
        for step in &look.steps {
            assert_eq!(step.loss_scale, Some(scale), "{step:?}");
            // The loss of CLASSES classes as it starts, not thousands of times that.
            assert!(step.loss > 0.0 && step.loss < 10.0, "{step:?}");
            if step.skipped {
                scale /= 2.0;
                let found = &look.found[skipped];
                assert_eq!((found.step, found.lower_scale), (step.step, Some(scale)));
                assert!(found.gradient.is_some());
                skipped += 1;
            }
        }
        assert!((1..settings.steps).contains(&skipped), "{skipped} skipped");
        assert_eq!(
            (record.overflow_steps, record.nonfinite_steps),
            (skipped, 0)
        );
        assert_eq!(record.loss_scale, Some(scale));
        assert_eq!(steps(folder.path()), look.steps);

        // While step k is done, the snapshot is that of k - 1.
        for (step, states) in look.steps[1..].iter().zip(look.snapshots[1..].windows(2)) {
            let [Some(before), Some(after)] = states else {
                panic!("step {} has no snapshot", step.step);
            };
            assert_eq!(before.model == after.model, step.skipped, "{step:?}");
            let kept = before.optimizer == after.optimizer;
            assert_eq!(kept, step.skipped, "{step:?}");
        }
    }
}

#[test]
fn a_scale_that_cannot_fall_leaves_the_step_to_on_nonfinite() {
    own_process!();
    const FALLS: usize = 16;
    let source = Source::Synthetic {
        shape: vec![4],
        vocab: None,
        target: TargetKind::Values(1),
        samples: 8,
        seed: 3,
    };
    // Vectors and targets near 1,000: a gradient by a weight is about as large as their product, more than `f16` has.
    let split = open(&source, 0.0, 1).unwrap();
    let data = through(&*split.train, |mut batch, _| {
        let large = |values: &mut Vec<f32>| {
            for value in values {
                *value += 1000.0;
            }
        };
        if let Numbers::Floats(values) = &mut batch.inputs {
            large(values);
        }
        if let Numbers::Floats(values) = &mut batch.targets {
            large(values);
        }
        batch
    });
    let model = ModelSpec {
        input: SampleShape::float([4]),
        layers: vec![LayerSpec::Linear { out: 1, bias: true }],
    };
    let ran = |on_nonfinite| {
        let settings = TrainSettings {
            dtype: Dtype::F16,
            on_nonfinite,
            ..classifier(FALLS + 3, 2, SGD)
        };
        let job = Job::new(&model, &data, &settings, plain());
        let mut steps = Steps::default();
        let ran = run(&job, DeviceId::Cpu, &mut |event| steps.tell(event));
        (ran, steps.0)
    };
    let (stopped, steps) = ran(OnNonFinite::Stop);
    let falls: Vec<f64> = steps.iter().map(|step| step.loss_scale.unwrap()).collect();
    let halved: Vec<f64> = (1..=FALLS as i32)
        .rev()
        .map(|power| 2.0_f64.powi(power))
        .collect();
    assert_eq!(falls, halved);
    assert!(
        steps
            .iter()
            .all(|step| step.skipped && step.loss.is_finite())
    );
    let error = stopped.unwrap_err();
    assert!(matches!(error, RunError::NonFinite(_)), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("loss scale of 1, which does not fall further"),
        "{said}"
    );

    let (skipped, _) = ran(OnNonFinite::Skip);
    let RunRecord {
        overflow_steps,
        nonfinite_steps,
        ..
    } = skipped.unwrap();
    assert_eq!((overflow_steps, nonfinite_steps), (FALLS, 3));
}

/// Text of this repository, of which each byte of a window is predicted from those before it.
fn text(window: usize) -> Split {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/data");
    let source = Source::Text {
        files: vec![folder.join("shakespeare.txt")],
        window,
        predict: Predict::Each,
    };
    open(&source, 0.0, 1).unwrap()
}

fn linear(out: usize) -> LayerSpec {
    LayerSpec::Linear { out, bias: true }
}

/// Bytes predicted from the one before.
fn bigrams() -> ModelSpec {
    ModelSpec {
        input: SampleShape::tokens([16]),
        layers: vec![
            LayerSpec::Embedding {
                vocab: 256,
                dim: 16,
            },
            linear(32),
            LayerSpec::Gelu,
            linear(256),
        ],
    }
}

fn losses(model: &ModelSpec, data: &Split, settings: &TrainSettings) -> Vec<f64> {
    let job = Job::new(model, &*data.train, settings, plain());
    let mut steps = Steps::default();
    run(&job, DeviceId::Cpu, &mut |event| steps.tell(event)).unwrap();
    steps.0.iter().map(|step| step.loss).collect()
}

/// Share of what `f32` learns by which losses may differ: half the distance from 1 to the next number of `bf16`, 2^-8.
const TOLERANCE: f64 = 1.0 / 256.0;

#[test]
fn half_types_train_as_f32_does() {
    own_process!();
    let (model, data) = (bigrams(), text(16));
    let of = |dtype, master_weights, accumulate| {
        let settings = TrainSettings {
            dtype,
            master_weights,
            accumulate: Accumulate::Parts(accumulate),
            ..classifier(60, 16, SGD)
        };
        losses(&model, &data, &settings)
    };
    let exact = of(Dtype::F32, true, 1);
    let (first, last) = (exact[0], exact[59]);
    assert!(last < first - 1.0, "f32 learns: {first} to {last}");
    let differs = |losses: &[f64]| (losses[59] - last).abs() / (first - last);
    for (dtype, accumulate) in [(Dtype::Bf16, 1), (Dtype::Bf16, 4), (Dtype::F16, 1)] {
        let off = differs(&of(dtype, true, accumulate));
        assert!(off < TOLERANCE, "{dtype} in {accumulate} parts: {off}");
    }
    // Most updates are below half a unit of a weight's last place.
    let off = differs(&of(Dtype::Bf16, false, 1));
    assert!(off > 4.0 * TOLERANCE, "without master weights: {off}");
}

/// How far a predicted peak may be from the measured one: of the plain run, and of a plan, which depends on measured times
/// and may be predicted too high by more.
const PREDICTED: f64 = 0.03;
const PLAN_PREDICTED: f64 = 0.08;

/// Halfway between the smallest budget and the plain peak. Both hold what a matrix product keeps for each thread, which is
/// as large as the machine's second-level cache.
fn middle_budget(job: &Job<'_>) -> Bytes {
    let mut subject = measure(job, DeviceId::Cpu, &mut |_| ()).unwrap();
    let plain = subject.plan(job, &plain()).unwrap().summary;
    let plain = plain.predicted_peak;
    let within = ScheduleRequest::Plan(Request::within(Bytes(1)));
    match subject.plan(job, &within) {
        Err(RunError::Infeasible(Infeasible { smallest, .. })) => Bytes((smallest.0 + plain.0) / 2),
        other => panic!("{:?}", other.map(|planned| planned.summary)),
    }
}

/// A run within a budget that recomputes something, then, as a meter forgets no peak of its process, a plain run.
fn peaks(model: &ModelSpec, data: &Split, settings: &TrainSettings) {
    let job = |schedule| Job::new(model, &*data.train, settings, schedule);
    // The leanest program is measured: what measuring takes is forgotten no more than other peaks.
    let full = processor(Some(Bytes(1)));
    let budget = middle_budget(&Job {
        device: Some(&full),
        ..job(plain())
    });
    let run = |schedule, too_high: f64| {
        let record = run(&job(schedule), DeviceId::Cpu, &mut |_| ()).unwrap();
        let measured = record.measured.peak.0 as f64;
        let off = (record.plan.predicted_peak.0 as f64 - measured) / measured;
        assert!(off > -PREDICTED && off < too_high, "{settings:?}: {off}");
        record
    };
    let within = ScheduleRequest::Plan(Request::within(budget));
    let within = run(within, PLAN_PREDICTED);
    let plain = run(plain(), PREDICTED);
    assert!(within.plan.repeated > 0 && within.measured.peak <= budget);
    assert!(plain.measured.peak > budget);
    assert_eq!(within.last_loss.to_bits(), plain.last_loss.to_bits());
}

#[test]
fn peaks_hold_master_weights_and_sums_of_gradients() {
    own_process!();
    let mlp = ModelSpec {
        input: SampleShape::float([128]),
        layers: (0..8)
            .flat_map(|_| [linear(128), LayerSpec::Gelu])
            .chain([linear(8)])
            .collect(),
    };
    let data = vectors(128, 8, 1024);
    let settings = TrainSettings {
        dtype: Dtype::Bf16,
        accumulate: Accumulate::Parts(2),
        ..classifier(3, 1024, ADAM)
    };
    peaks(&mlp, &data, &settings);
}

#[test]
fn peaks_of_a_transformer_hold_master_weights() {
    own_process!();
    const DIM: usize = 64;
    let norm = || LayerSpec::LayerNorm;
    let residual = |layers| LayerSpec::Residual(layers);
    let attention = LayerSpec::Attention {
        heads: 2,
        causal: true,
    };
    let block = [
        residual(vec![norm(), attention]),
        residual(vec![norm(), linear(4 * DIM), LayerSpec::Gelu, linear(DIM)]),
    ];
    let ends = [norm(), LayerSpec::Unembedding];
    let embedded = [
        LayerSpec::Embedding {
            vocab: 256,
            dim: DIM,
        },
        LayerSpec::Positions,
    ];
    let gpt = ModelSpec {
        input: SampleShape::tokens([64]),
        layers: [&embedded[..], &block, &block, &ends].concat(),
    };
    let settings = TrainSettings {
        dtype: Dtype::Bf16,
        loss_chunks: LossChunks::Auto,
        clip_norm: Some(1.0),
        ..classifier(3, 16, ADAM)
    };
    peaks(&gpt, &text(64), &settings);
}
