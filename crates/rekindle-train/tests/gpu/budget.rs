//! On a GPU a budget bounds what the pools reserve.

use rekindle::Dtype;
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    data::{Split, TargetKind, open, settings::Source},
    device::DeviceInfo,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::RunRecord,
    run_dir::RunDir,
    session::{Event, Infeasible, Job, RunError, ScheduleRequest, Tell, run},
    settings::{OptimizerKind, TrainSettings, UpdateChoice},
};

const WIDTH: usize = 256;
const DEPTH: usize = 12;
const BATCH: usize = 512;

/// Bytes of one value of the step.
const VALUE: u64 = (BATCH * WIDTH * size_of::<f32>()) as u64;

/// Bytes by which the measured peak in use may be below the predicted one, which is that of operations that run one by
/// one: where fusion runs some of them as one kernel, that kernel may overwrite an input that only the last of them
/// frees. Then one value less is in use. The rest is for what is counted on top of values.
const BELOW: u64 = VALUE + VALUE / 2;

#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn what_the_pools_reserve_stays_within_the_budget_and_does_not_grow() {
    own_process!();
    let Some(device) = crate::gpu() else {
        return;
    };
    // Too little, so that the error names the least that will do.
    let error = train(&device, Bytes(1), 1, &mut |_| ()).unwrap_err();
    let RunError::Infeasible(Infeasible { smallest, .. }) = *error else {
        panic!("one byte is too little, but {error}");
    };
    for budget in [smallest, Bytes(smallest.0 / 4 * 5)] {
        let record = train(&device, budget, 3, &mut |_| ()).unwrap();
        let pools = record.pools.unwrap();
        println!(
            "budget {budget}: predicted {}, reserved {}, in use {} predicted, {} seen, {} trims",
            record.plan.predicted_peak,
            record.measured.peak,
            record.plan.predicted_in_use,
            record.measured.in_use,
            pools.trims
        );
        assert!(record.measured.peak <= budget);
        let (predicted, measured) = (record.plan.predicted_in_use, record.measured.in_use);
        assert!(
            measured <= predicted && predicted.0 - measured.0 <= BELOW,
            "{predicted}, {measured}"
        );
    }

    let budget = Bytes(smallest.0 / 4 * 5);
    // Bytes in use after each step.
    let mut seen = Vec::new();
    let record = train(&device, budget, STEPS, &mut |event| {
        if let Event::Stepped { memory, .. } = event {
            seen.push(memory.in_use);
        }
    })
    .unwrap();
    assert!(record.measured.peak <= budget);
    let most = |steps: &[Bytes]| steps.iter().copied().max().unwrap();
    let (early, late) = (most(&seen[WARM..2 * WARM]), most(&seen[STEPS - WARM..]));
    println!("in use after {STEPS} steps: {late}, after {WARM}: {early}");
    assert_eq!(early, late, "memory grows");
}

/// Steps of a run whose memory is watched, and of a part of it, whose most is compared.
const STEPS: usize = 60;
const WARM: usize = 15;

/// Samples of so many numbers, and as many to learn of each.
fn vectors(width: usize, samples: usize) -> Split {
    let source = Source::Synthetic {
        shape: vec![width],
        vocab: None,
        target: TargetKind::Values(width),
        samples,
        seed: 1,
    };
    open(&source, 0.0, 1).unwrap()
}

fn train(
    device: &DeviceInfo,
    budget: Bytes,
    steps: usize,
    tell: &mut Tell<'_>,
) -> Result<RunRecord, Box<RunError>> {
    let mut layers = Vec::new();
    for _ in 0..DEPTH {
        layers.push(LayerSpec::Linear {
            out: WIDTH,
            bias: true,
        });
        layers.push(LayerSpec::Tanh);
    }
    let model = ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers,
    };
    let data = vectors(WIDTH, 1024);
    let settings = TrainSettings {
        steps,
        batch: BATCH,
        seed: 1,
        optimizer: OptimizerKind::Sgd,
        momentum: 0.9,
        learning_rate: Some(1e-2),
        update: UpdateChoice::After,
        ..TrainSettings::default()
    };
    let request = ScheduleRequest::Plan(Request::within(budget));
    let job = Job {
        device: Some(device),
        ..Job::new(&model, &*data.train, &settings, request)
    };
    run(&job, device.device, tell).map_err(Box::new)
}

/// Large parameters and a small batch: within the budget the plain step runs, with most of Adam's state on the host. It is
/// stopped halfway and resumed.
#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn the_optimizers_state_waits_on_the_host_for_the_same_weights_in_less_memory() {
    const WIDTH: usize = 512;
    const DEPTH: u64 = 6;
    /// Adam's moments of a layer's weights.
    const STATE: u64 = 2 * (WIDTH * WIDTH * size_of::<f32>()) as u64;
    own_process!();
    let Some(device) = crate::gpu() else {
        return;
    };
    let linear = LayerSpec::Linear {
        out: WIDTH,
        bias: true,
    };
    let model = ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers: vec![linear; DEPTH as usize],
    };
    let data = vectors(WIDTH, 64);
    let train = |update, planner, budget: Option<Bytes>, folder: RunDir, last| {
        let settings = TrainSettings {
            steps: 4,
            batch: 16,
            seed: 1,
            optimizer: OptimizerKind::Adam,
            learning_rate: Some(1e-3),
            update,
            ..TrainSettings::default()
        };
        let mut job = Job::new(
            &model,
            &*data.train,
            &settings,
            ScheduleRequest::Plan(Request::of(planner, budget)),
        );
        job.device = Some(&device);
        job.host = budget.map(|_| Bytes(1 << 30));
        job.run_dir = Some(folder);
        let mut tell = |event: Event<'_>| {
            if let Event::Stepped { step, stop, .. } = event {
                *stop = step.step == last;
            }
        };
        run(&job, device.device, &mut tell).unwrap()
    };
    let folders = tempfile::tempdir().unwrap();
    let folder = |name: &str| folders.path().join(name);
    let weights = |name: &str| std::fs::read(folder(name).join("weights.safetensors")).unwrap();
    for (update, name) in [
        (UpdateChoice::After, "after"),
        (UpdateChoice::InBackward, "in-backward"),
    ] {
        let (plain_dir, within_dir) = (format!("{name}-plain"), format!("{name}-within"));
        let new = |name: &str| RunDir::New(folder(name));
        let plain = train(update, Planner::None, None, new(&plain_dir), 4);
        let budget = plain.plan.predicted_peak - Bytes(4 * STATE);
        // What it has left in the pools is not the next one's.
        let opened = rekindle_train::device::open(device.device, Dtype::F32);
        opened.unwrap().meter.trim();
        let within = |dir, last| train(update, Planner::Auto, Some(budget), dir, last);
        assert!(within(new(&within_dir), 2).interrupted);
        let within = within(RunDir::Resume(folder(&within_dir)), 4);
        assert_eq!(within.resumed_at, Some(2));
        let offload = within.plan.offload.unwrap();
        println!(
            "{name}: {} in use instead of {}, predicted {}; {} reserved, budget {budget}; {} of state on the host, {} of {}",
            within.measured.in_use,
            plain.measured.in_use,
            within.plan.predicted_in_use,
            within.measured.peak,
            offload.state_bytes,
            offload.state_s,
            within.plan.predicted_time,
        );
        assert!(
            offload.state_bytes.0 >= 4 * STATE,
            "{}",
            offload.state_bytes
        );
        assert!(within.measured.peak <= budget);
        let less = plain.measured.in_use - within.measured.in_use;
        // Trying the optimizer before the first step takes one state.
        assert!(less >= offload.state_bytes - Bytes(STATE), "{less}");
        assert!(within.measured.in_use <= within.plan.predicted_in_use);
        assert_eq!(within.last_loss.to_bits(), plain.last_loss.to_bits());
        assert!(weights(&within_dir) == weights(&plain_dir), "{name}");
    }
}
