//! A run takes as much memory after any number of steps, and says so where it does not.

use std::sync::{Mutex, PoisonError};

use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::MemoryGrowth,
    run_dir::{RunDir, SnapshotEvery, read_record},
    session::{Event, Job, ScheduleRequest, run},
    settings::OptimizerKind,
};

use crate::jobs::{classifier, evaluations, steps, through, vectors};

const STEPS: usize = 1_000;

/// The highest memory between steps, before and after the half. Neither vector grows while it is filled.
struct Held {
    halves: [Bytes; 2],
    peaks: [Bytes; 2],
    evaluations: usize,
    grown: Vec<MemoryGrowth>,
}

impl Held {
    fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Stepped { step, memory, .. } => {
                let half = usize::from(step.step > STEPS / 2);
                self.halves[half] = self.halves[half].max(memory.in_use);
                self.peaks[half] = memory.counted_peak;
            }
            Event::Evaluated(_) => self.evaluations += 1,
            Event::Grows(growth) => self.grown.push(growth),
            _ => {}
        }
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
    let sgd = (OptimizerKind::Sgd, 0.9, 0.0);
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
        grown: Vec::new(),
    };
    let record = run(&job, DeviceId::Cpu, &mut |event| held.tell(event)).expect("trains");
    assert_eq!(held.evaluations, STEPS / 10);
    assert_eq!((record.growth, &held.grown[..]), (None, &[][..]));
    assert!(held.halves[1] <= held.halves[0], "{:?}", held.halves);
    assert_eq!(held.peaks[1], held.peaks[0]);
    assert_eq!(record.measured.peak, held.peaks[0]);
    assert_eq!(steps(&path).len(), STEPS);
    assert_eq!(evaluations(&path).len(), STEPS / 10);
}

#[test]
fn a_run_says_that_its_data_is_kept() {
    own_process!();
    const STEPS: usize = 70;
    const EACH: usize = 100 << 10;
    /// What lists and files hold more or less after a step.
    const BESIDE: u64 = 16 << 10;
    let model = ModelSpec {
        input: SampleShape::float([4]),
        layers: vec![LayerSpec::Linear { out: 3, bias: true }],
    };
    let data = vectors(4, 3, 16);
    // Keeps so many bytes with every batch that is read.
    let held = Mutex::new(Vec::with_capacity(4 * STEPS));
    let hoard = through(&*data.train, |batch, _| {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(held.len() < held.capacity());
        held.push(vec![1_u8; EACH]);
        batch
    });
    let sgd = (OptimizerKind::Sgd, 0.9, 0.0);
    let settings = classifier(STEPS, 4, sgd);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    let job = Job {
        run_dir: Some(RunDir::New(path.clone())),
        ..Job::new(&model, &hoard, &settings, plain())
    };
    let mut told = Vec::new();
    let record = run(&job, DeviceId::Cpu, &mut |event| {
        if let Event::Grows(growth) = event {
            told.push(growth);
        }
    })
    .expect("trains");
    let growth = record.growth.expect("growth");
    assert_eq!(told, [growth]);
    assert_eq!(read_record(&path).expect("a record").growth, Some(growth));
    // In each of five times ten steps there was more than ever before.
    assert_eq!((growth.first_step, growth.last_step), (10, 60));
    let grown = growth.last_bytes - growth.first_bytes;
    assert!(grown.0.abs_diff(50 * EACH as u64) <= BESIDE, "{growth:?}");
    let (first, last) = (growth.first_bytes, growth.last_bytes);
    assert_eq!(
        growth.to_string(),
        format!("{first} in use after step 10, {last} after step 60")
    );
    let documented = serde_json::json!({
        "first_step": 10,
        "first_bytes": first.0,
        "last_step": 60,
        "last_bytes": last.0,
    });
    assert_eq!(serde_json::to_value(growth).expect("JSON"), documented);
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
    let adam = (OptimizerKind::Adam, 0.0, 0.0);
    let sgd = (OptimizerKind::Sgd, 0.9, 0.0);
    for optimizer in [adam, sgd] {
        let settings = classifier(4, 2, optimizer);
        let folder = tempfile::tempdir().expect("a folder");
        let job = Job {
            run_dir: Some(RunDir::New(folder.path().join("run"))),
            snapshot_every: SnapshotEvery::Steps(1),
            ..Job::new(&model, &*data.train, &settings, plain())
        };
        let record = run(&job, DeviceId::Cpu, &mut |_| ()).expect("trains");
        assert!(
            record.measured.peak <= record.plan.predicted_peak,
            "{optimizer:?}: {} of {}",
            record.measured.peak,
            record.plan.predicted_peak
        );
    }
}

fn plain() -> ScheduleRequest {
    ScheduleRequest::Plan(Request::of(Planner::None, None))
}
