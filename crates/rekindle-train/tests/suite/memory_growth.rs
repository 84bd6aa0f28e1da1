//! A run takes as much memory after any number of steps.

use std::ops::ControlFlow;

use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::{EvalRecord, StepRecord},
    run_dir::{RunDir, SnapshotEvery, read_evaluations, read_steps},
    session::{Job, MemoryNow, Observer, ScheduleRequest, run},
    settings::OptimizerSettings,
};

use crate::jobs::{classifier, vectors};

const STEPS: usize = 1_000;

/// The highest memory between steps, before and after the half. Neither vector grows while it is filled.
struct Held {
    halves: [Bytes; 2],
    peaks: [Bytes; 2],
    evaluations: usize,
}

impl Observer for Held {
    fn stepped(&mut self, step: &StepRecord, memory: MemoryNow) -> ControlFlow<()> {
        let half = usize::from(step.step > STEPS / 2);
        self.halves[half] = self.halves[half].max(memory.in_use);
        self.peaks[half] = memory.peak.in_use_bytes;
        ControlFlow::Continue(())
    }

    fn evaluated(&mut self, _evaluation: &EvalRecord) {
        self.evaluations += 1;
    }
}

#[test]
fn memory_does_not_grow_with_the_steps() {
    own_process!();
    let model = ModelSpec {
        input: SampleShape::float([4]),
        layers: vec![LayerSpec::Linear { out: 3, bias: true }],
    };
    let data = vectors(4, 3, 16);
    let sgd = OptimizerSettings::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
    };
    let mut settings = classifier(STEPS, 4, sgd);
    settings.eval_every = Some(10);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    let job = Job {
        eval: Some(&*data.train),
        run_dir: Some(RunDir::New(path.clone())),
        snapshot_every: SnapshotEvery::Steps(100),
        ..Job::new(&model, &*data.train, &settings, plain())
    };
    let mut held = Held {
        halves: [Bytes(0); 2],
        peaks: [Bytes(0); 2],
        evaluations: 0,
    };
    let record = run(&job, DeviceId::Cpu, &mut held).expect("trains");
    assert_eq!(held.evaluations, STEPS / 10);
    assert!(held.halves[1] <= held.halves[0], "{:?}", held.halves);
    assert_eq!(held.peaks[1], held.peaks[0]);
    assert_eq!(record.measured_peak_bytes, held.peaks[0]);
    assert_eq!(read_steps(&path).expect("steps").len(), STEPS);
    assert_eq!(
        read_evaluations(&path).expect("evaluations").len(),
        STEPS / 10
    );
}

/// One parameter is nearly the whole model: what a snapshot copies of it is the most that any model's takes.
#[test]
fn snapshots_stay_below_the_predicted_peak() {
    own_process!();
    let model = ModelSpec {
        input: SampleShape::float([600]),
        layers: vec![
            LayerSpec::Linear {
                out: 1_000,
                bias: false,
            },
            LayerSpec::Linear { out: 3, bias: true },
        ],
    };
    let data = vectors(600, 3, 8);
    let adam = OptimizerSettings::Adam {
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    let sgd = OptimizerSettings::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
    };
    for optimizer in [adam, sgd] {
        let settings = classifier(4, 2, optimizer);
        let folder = tempfile::tempdir().expect("a folder");
        let job = Job {
            run_dir: Some(RunDir::New(folder.path().join("run"))),
            snapshot_every: SnapshotEvery::Steps(1),
            ..Job::new(&model, &*data.train, &settings, plain())
        };
        let record = run(&job, DeviceId::Cpu, &mut ()).expect("trains");
        assert!(
            record.measured_peak_bytes <= record.predicted_peak_bytes,
            "{optimizer:?}: {} of {}",
            record.measured_peak_bytes,
            record.predicted_peak_bytes
        );
    }
}

fn plain() -> ScheduleRequest {
    ScheduleRequest::Plan(Request {
        planner: Planner::None,
        ..Request::default()
    })
}
