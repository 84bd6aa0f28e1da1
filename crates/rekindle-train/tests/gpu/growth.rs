//! Buffers of a GPU that every step leaves in use are noticed.

use std::fs;

use burn::tensor::{Device, Tensor};
use rekindle::Dtype;
use rekindle_plan::{Bytes, Request};
use rekindle_train::{
    data::{TargetKind, open as open_data, settings::Source},
    device::{DeviceId, DeviceInfo, open},
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::{MemoryGrowth, RunRecord, StepRecord},
    session::{Event, Job, MemoryNow, ScheduleRequest, run},
    settings::{OptimizerKind, TrainSettings},
};

const WIDTH: usize = 64;
const BATCH: usize = 512;

/// Of a run that leaves nothing behind. Pages in which batches wait for their transfer are first touched within a hundred.
const STEPS: usize = 300;

/// Of a run that keeps a buffer of every step.
const LEAKING_STEPS: usize = 80;

/// Bytes of an activation, which is what leaks: 128 KiB.
const ACTIVATION: u64 = (BATCH * WIDTH * size_of::<f32>()) as u64;

/// A loss and the like, which queues may hold or not.
const SCALARS: u64 = 1024;

/// A program around a run that keeps a buffer of every step.
struct Hoarder {
    device: Option<Device>,
    /// The first of these steps.
    first: usize,
    kept: Vec<Tensor<2>>,
    told: Vec<MemoryGrowth>,
    /// In use after each step.
    in_use: Vec<Bytes>,
    /// Resident bytes of the process after each step, files' apart; 0 where the system does not tell.
    resident: Vec<u64>,
}

impl Hoarder {
    fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Stepped { step, memory, .. } => self.stepped(step, memory),
            Event::Grows(growth) => self.told.push(growth),
            _ => {}
        }
    }

    fn stepped(&mut self, step: &StepRecord, memory: MemoryNow) {
        self.in_use.push(memory.in_use);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let resident =
            resident.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        self.resident.push(resident.unwrap_or_default() << 10);
        if let Some(device) = self.device.as_ref().filter(|_| step.step >= self.first) {
            self.kept.push(Tensor::ones([BATCH, WIDTH], device));
        }
    }
}

/// A run of so many steps, of which a buffer is kept on a device from the first of these steps on.
fn train(
    info: &DeviceInfo,
    steps: usize,
    kept_on: Option<Device>,
    first: usize,
) -> (RunRecord, Hoarder) {
    let model = ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers: vec![LayerSpec::Linear {
            out: WIDTH,
            bias: true,
        }],
    };
    let data = Source::Synthetic {
        shape: vec![WIDTH],
        vocab: None,
        target: TargetKind::Values(WIDTH),
        samples: 2 * BATCH,
        seed: 1,
    };
    let data = open_data(&data, 0.0, 1).expect("data");
    let settings = TrainSettings {
        update: rekindle_train::settings::UpdateChoice::After,
        steps,
        batch: BATCH,
        seed: 1,
        optimizer: OptimizerKind::Sgd,
        momentum: 0.9,
        learning_rate: Some(1e-2),
        ..TrainSettings::default()
    };
    let request = ScheduleRequest::Plan(Request::default());
    let job = Job {
        device: Some(info),
        ..Job::new(&model, &*data.train, &settings, request)
    };
    let mut hoarder = Hoarder {
        device: kept_on,
        first,
        kept: Vec::new(),
        told: Vec::new(),
        in_use: Vec::new(),
        resident: Vec::with_capacity(steps),
    };
    let record = run(&job, info.device, &mut |event| hoarder.tell(event)).expect("trains");
    (record, hoarder)
}

#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn a_run_tells_that_buffers_of_its_device_are_kept() {
    own_process!();
    let Some(info) = crate::gpu() else {
        return;
    };
    let opened = open(info.device, Dtype::F32).expect("a device that answers");
    let (record, seen) = train(&info, STEPS, None, 0);
    assert_eq!((record.growth, seen.told.len()), (None, 0));
    let settled = &seen.in_use[10..];
    println!("after {STEPS} steps {} in use", settled[0]);
    assert!(settled.iter().all(|one| *one == settled[0]), "{settled:?}");
    let highest = |bytes: &[u64]| bytes.iter().max().copied().unwrap_or_default();
    let (early, late) = (
        highest(&seen.resident[STEPS / 6..STEPS / 2]),
        highest(&seen.resident[STEPS * 2 / 3..]),
    );
    println!("{early} bytes are resident at most in the first half, {late} in the last third");
    // Software Vulkan computes in this process, with memory of its own.
    if matches!(info.device, DeviceId::Cuda(_)) {
        assert!(
            early > 0 && late <= early + 8 * ACTIVATION,
            "{early} {late}"
        );
    }

    // Noticed after five times ten steps, each with ten buffers more; those after step 20 are the first of the late ones.
    for (first, last) in [(1, 60), (20, 70)] {
        let kept_on = Some(opened.device.clone().without_autodiff());
        let (record, Hoarder { told, .. }) = train(&info, LEAKING_STEPS, kept_on, first);
        let growth = record.growth.expect("growth");
        println!("from step {first} on: {growth}");
        assert_eq!(told, [growth]);
        assert_eq!((growth.first_step, growth.last_step), (10, last));
        let grown = growth.last_bytes - growth.first_bytes;
        assert!(grown.0.abs_diff(50 * ACTIVATION) <= SCALARS, "{growth:?}");
    }
}
