//! Memory that runs out in the middle of a run: the step is abandoned, and a smaller plan runs the same batch with the same
//! random numbers, so that the run computes what an undisturbed one does.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    hint::black_box,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    Dtype,
    meter::{FailedAllocation, HostMeter, MemoryReading, Meter, PeakMemory},
    record::RecordError,
    reduce::in_process,
};
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    Estimated,
    data::Dataset,
    device::{DeviceId, DeviceInfo},
    kernels,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    ranks::Ranks,
    record::RunRecord,
    run_dir::{RunDir, SnapshotEvery},
    session::{Event, Job, MeasuredStep, PlanFile, RunError, ScheduleRequest, run},
    settings::{Accumulate, TrainSettings, UpdateChoice},
    shortage::Shortage,
};

use crate::{
    jobs::{classifier, processor, steps, through, vectors},
    resume::{ADAM, tensors},
};

const WIDTH: usize = 64;
const BATCH: usize = 2048;
const STEPS: usize = 6;
/// The last step before memory is short.
const UNTIL: usize = 3;

/// Activations of 512 KiB each, parameters of 16 KiB.
fn model() -> ModelSpec {
    let linear = LayerSpec::Linear {
        out: WIDTH,
        bias: true,
    };
    let block = [
        linear.clone(),
        LayerSpec::Tanh,
        LayerSpec::Dropout { p: 0.1 },
    ];
    let mut layers: Vec<LayerSpec> = (0..8).flat_map(|_| block.clone()).collect();
    layers.push(linear);
    ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers,
    }
}

/// What makes memory short after step [`UNTIL`].
#[derive(Clone, Copy)]
enum Disturbance {
    None,
    /// Allocations fail that would take more than this share of what steps took so far.
    Limit(f64),
    /// The program holds this share of what steps took so far.
    Held(f64),
    /// The same, from the middle of the next step on.
    HeldInStep(f64),
}

struct Disturb {
    by: Disturbance,
    peak: Bytes,
    held: Vec<u8>,
    takes: Arc<AtomicUsize>,
    again: Vec<(usize, Shortage, Bytes)>,
    notices: Vec<String>,
}

impl Disturb {
    fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Planned { planned, .. } => self.peak = planned.summary.predicted_peak,
            Event::Stepped { step, .. } if step.step == UNTIL => self.disturb(),
            Event::Noticed(text) => self.notices.push(text.to_owned()),
            Event::PlannedAgain {
                step,
                shortage,
                planned,
                ..
            } => {
                let peak = planned.summary.predicted_peak;
                self.again.push((step, shortage.clone(), peak));
            }
            _ => {}
        }
    }

    fn disturb(&mut self) {
        let base = rekindle_alloc::in_use();
        let share = |share: f64| ((self.peak.0 as usize - base) as f64 * share) as usize;
        match self.by {
            Disturbance::None => {}
            Disturbance::Limit(of) => rekindle_alloc::set_limit(base + share(of)),
            Disturbance::HeldInStep(of) => self.takes.store(share(of), Relaxed),
            Disturbance::Held(of) => self.held = black_box(vec![1; share(of)]),
        }
    }
}

fn train(
    budget: Option<Bytes>,
    by: Disturbance,
    run_dir: RunDir,
) -> (Result<RunRecord, RunError>, Disturb) {
    let settings = classifier(STEPS, BATCH, ADAM);
    train_model(&model(), &settings, budget, by, run_dir)
}

fn train_model(
    model: &ModelSpec,
    settings: &TrainSettings,
    budget: Option<Bytes>,
    by: Disturbance,
    run_dir: RunDir,
) -> (Result<RunRecord, RunError>, Disturb) {
    let data = vectors(WIDTH, WIDTH, 2 * BATCH);
    // Takes so many bytes for good when the next batch is read.
    let takes = Arc::new(AtomicUsize::new(0));
    let held: Mutex<Vec<u8>> = Mutex::default();
    let greedy = through(&*data.train, |batch, _| {
        let bytes = takes.swap(0, Relaxed);
        if bytes > 0 {
            *held.lock().unwrap() = black_box(vec![1; bytes]);
        }
        batch
    });
    let request = Request {
        budget,
        ..Request::default()
    };
    let job = Job {
        run_dir: Some(run_dir),
        snapshot_every: SnapshotEvery::Steps(2),
        ..Job::new(model, &greedy, settings, ScheduleRequest::Plan(request))
    };
    let mut disturb = Disturb {
        by,
        peak: Bytes::ZERO,
        held: Vec::new(),
        takes: Arc::clone(&takes),
        again: Vec::new(),
        notices: Vec::new(),
    };
    let record = run(&job, DeviceId::Cpu, &mut |event| disturb.tell(event));
    rekindle_alloc::set_limit(usize::MAX);
    disturb.held = Vec::new();
    (record, disturb)
}

fn losses(folder: &Path) -> Vec<u64> {
    let steps = steps(folder);
    steps.iter().map(|step| step.loss.to_bits()).collect()
}

/// Both runs left the same parameters and computed the same losses.
fn assert_same(whole: &Path, other: &Path) {
    assert_eq!(losses(whole), losses(other));
    assert!(tensors(whole).model == tensors(other).model);
}

#[test]
fn a_failed_allocation_of_a_recorded_step_is_survived_bit_for_bit() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let [whole, short] = ["whole", "short"].map(|name| folder.path().join(name));
    let new = |path: &Path| RunDir::New(path.to_path_buf());
    let (plain, disturb) = train(None, Disturbance::None, new(&whole));
    let (plain, peak) = (plain.unwrap(), disturb.peak);
    assert_eq!((plain.replans, plain.plan.repeated > 0), (0, false));

    let (record, disturb) = train(None, Disturbance::Limit(0.6), new(&short));
    let record = record.unwrap();
    assert!(record.replans > 0 && record.plan.repeated > 0);
    assert_eq!(disturb.again.len(), record.replans);
    let (step, shortage, smaller) = &disturb.again[0];
    println!("{shortage}; {smaller} instead of {peak}");
    assert_eq!(*step, UNTIL + 1);
    assert!(matches!(shortage, Shortage::Failed(_)), "{shortage}");
    assert!(*smaller < peak);
    assert_same(&whole, &short);
}

/// An update cannot be taken back. Memory runs out in the backward of the widest layer, when those after it are updated.
#[test]
fn a_failed_allocation_after_some_updates_goes_back_to_the_snapshot() {
    own_process!();
    goes_back(Dtype::F32);
}

#[test]
fn master_weights_go_back_to_the_snapshot() {
    own_process!();
    goes_back(Dtype::Bf16);
}

fn goes_back(dtype: Dtype) {
    const WIDE: usize = 512;
    let linear = |out| LayerSpec::Linear { out, bias: true };
    let block = || [linear(WIDE), LayerSpec::Tanh, linear(WIDTH)];
    let mut layers: Vec<LayerSpec> = (0..3).flat_map(|_| block()).collect();
    layers.extend([LayerSpec::Tanh, linear(WIDTH)]);
    let model = ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers,
    };
    let settings = TrainSettings {
        update: UpdateChoice::InBackward,
        dtype,
        ..classifier(STEPS, BATCH, ADAM)
    };
    let folder = tempfile::tempdir().unwrap();
    let [whole, short] = ["whole", "short"].map(|name| folder.path().join(name));
    let run = |by, path: &Path| {
        let new = RunDir::New(path.to_path_buf());
        train_model(&model, &settings, None, by, new)
    };
    let (plain, _) = run(Disturbance::None, &whole);
    plain.unwrap();

    let (record, disturb) = run(Disturbance::Limit(0.85), &short);
    let record = record.unwrap();
    println!("{:?}, {:?}", disturb.again, disturb.notices);
    // Step 4 failed; snapshots are taken after even steps.
    let back = format!(
        "step {} ran out of memory after some of its updates: back to the snapshot of step 2",
        UNTIL + 1
    );
    assert_eq!(disturb.notices, [back]);
    let (step, shortage, _) = &disturb.again[0];
    assert_eq!((*step, disturb.again.len()), (3, record.replans));
    assert!(matches!(shortage, Shortage::Failed(_)), "{shortage}");
    assert_eq!((record.steps, record.plan.repeated > 0), (STEPS, true));
    assert_same(&whole, &short);
}

#[test]
fn memory_that_others_take_leads_to_a_smaller_plan_or_an_end_with_a_snapshot() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let [whole, less, none] = ["whole", "less", "none"].map(|name| folder.path().join(name));
    let new = |path: &Path| RunDir::New(path.to_path_buf());
    let (plain, disturb) = train(None, Disturbance::None, new(&whole));
    plain.unwrap();
    // Peaks of the run before count in this process.
    let budget = Some(disturb.peak + Bytes(disturb.peak.0 / 8));

    let (record, disturb) = train(budget, Disturbance::Held(0.4), new(&less));
    let record = record.unwrap();
    let [(step, shortage, _)] = &disturb.again[..] else {
        panic!("{:?}", disturb.again);
    };
    println!("{shortage}");
    assert_eq!(*step, UNTIL + 1);
    assert!(matches!(shortage, Shortage::Grown { .. }), "{shortage}");
    assert!(Some(record.measured.peak) <= budget);
    assert_same(&whole, &less);

    let (error, _) = train(budget, Disturbance::Held(1.0), new(&none));
    let error = error.unwrap_err();
    let RunError::OutOfMemory(out) = &error else {
        panic!("{error}");
    };
    println!("{error}");
    assert_eq!((out.step, out.holders.len()), (UNTIL + 1, 5));
    assert!(out.smallest.is_some() || matches!(out.shortage, Shortage::NoRoom { .. }));
    let resume = RunDir::Resume(none.clone());
    let (record, _) = train(None, Disturbance::None, resume);
    let record = record.unwrap();
    assert_eq!(record.resumed_at, Some(UNTIL));
    assert_same(&whole, &none);
}

#[test]
fn memory_that_is_taken_while_a_batch_is_read_leads_to_a_smaller_plan() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let [whole, over] = ["whole", "over"].map(|name| folder.path().join(name));
    let new = |path: &Path| RunDir::New(path.to_path_buf());
    let (plain, disturb) = train(None, Disturbance::None, new(&whole));
    plain.unwrap();
    let budget = Some(disturb.peak + Bytes(disturb.peak.0 / 8));
    let (record, disturb) = train(budget, Disturbance::HeldInStep(0.4), new(&over));
    let record = record.unwrap();
    let (step, shortage, smaller) = &disturb.again[0];
    println!("{shortage}; {smaller}");
    // Step 4 runs meanwhile: the memory is found before its first operation or before step 5, or by step 4 itself, which
    // then has no effect.
    assert!((UNTIL + 1..=UNTIL + 2).contains(step), "{step}");
    match shortage {
        Shortage::Grown { .. } => assert!(Some(record.measured.peak) <= budget),
        Shortage::OverBudget { peak, .. } => assert!(record.measured.peak >= *peak),
        other => panic!("{other}"),
    }
    assert!(Some(*smaller) <= budget);
    assert_same(&whole, &over);
}

/// The process's allocator, with 8 MiB more held from an operation on, before which failures are asked for.
struct Grows {
    meter: HostMeter,
    /// How many operations are left until then.
    operations: AtomicUsize,
    held: Mutex<Vec<u8>>,
}

impl Meter for Grows {
    fn read(&self) -> MemoryReading {
        self.meter.read()
    }

    fn start_interval(&self) {
        self.meter.start_interval();
    }

    fn lifetime_peak(&self) -> PeakMemory {
        self.meter.lifetime_peak()
    }

    fn gather_threads(&self, on: bool) {
        self.meter.gather_threads(on);
    }

    fn failure(&self) -> Option<FailedAllocation> {
        if self.operations.fetch_sub(1, Relaxed) == 1 {
            *self.held.lock().unwrap() = black_box(vec![1; 8 << 20]);
        }
        self.meter.failure()
    }
}

#[test]
fn a_recorded_step_that_comes_to_hold_more_than_its_budget_is_abandoned_without_effect() {
    own_process!();
    let device = Device::flex().autodiff();
    let model: Vec<Linear> = (0..8)
        .map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device))
        .collect();
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    let meter = Arc::new(Grows {
        meter: HostMeter::new().unwrap(),
        operations: AtomicUsize::new(0),
        held: Mutex::default(),
    });
    let recorded = || {
        let recorded = rekindle::record(&model, &input, loss).unwrap();
        recorded.with_meter(meter.clone())
    };
    let plain = recorded().plain().unwrap().plan().predicted_peak;
    let step = recorded().within(plain + Bytes(1 << 20)).unwrap();
    let expected = step
        .run(&model, input.clone())
        .unwrap()
        .loss
        .into_scalar::<f32>();
    meter.operations.store(4, Relaxed);
    let refused = step.run(&model, input.clone()).err();
    assert!(
        matches!(refused, Some(RecordError::OverBudget { .. })),
        "{refused:?}"
    );
    assert_eq!(meter.held.lock().unwrap().len(), 8 << 20);
    *meter.held.lock().unwrap() = Vec::new();
    let again = step.run(&model, input).unwrap().loss.into_scalar::<f32>();
    assert_eq!(again.to_bits(), expected.to_bits());
}

/// As wgpu limits them. The tensor is named, and nothing is allocated.
#[test]
fn a_tensor_larger_than_a_buffer_of_the_device_is_told_before_the_start() {
    own_process!();
    let (model, data) = (model(), vectors(WIDTH, WIDTH, 2 * BATCH));
    let refused = |limit: u64, accumulate| {
        let settings = TrainSettings {
            accumulate: Accumulate::Parts(accumulate),
            ..classifier(1, BATCH, ADAM)
        };
        let device = DeviceInfo {
            largest_buffer_bytes: Some(Bytes(limit)),
            ..processor(None)
        };
        let job = Job {
            device: Some(&device),
            ..Job::new(
                &model,
                &*data.train,
                &settings,
                ScheduleRequest::Plan(Request::default()),
            )
        };
        run(&job, DeviceId::Cpu, &mut |_| ())
            .err()
            .map(|error| error.to_string())
    };
    let activation = (BATCH * WIDTH * size_of::<f32>()) as u64;
    assert_eq!(refused(activation, 1), None);
    let said = refused(activation - 1, 1).expect("too large");
    let size = Bytes(activation).to_string();
    for words in [
        "the batch's tensor",
        &size,
        "in one buffer; this device allows",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // Parts are as much smaller.
    assert_eq!(refused(activation - 1, 2), None);
}

#[test]
fn a_plan_that_the_machine_cannot_hold_is_not_started() {
    own_process!();
    let (model, data) = (model(), vectors(WIDTH, WIDTH, 2 * BATCH));
    let settings = classifier(STEPS, BATCH, ADAM);
    let schedule = ScheduleRequest::Plan(Request::default());
    let full = processor(Some(Bytes(16 << 20)));
    let job = Job {
        device: Some(&full),
        ..Job::new(&model, &*data.train, &settings, schedule)
    };
    let error = run(&job, DeviceId::Cpu, &mut |_| ()).unwrap_err();
    let RunError::NotEnough { peak, free, .. } = error else {
        panic!("{error}");
    };
    assert!(peak > free);
}

/// Nothing is read and nothing measured for what shapes tell.
#[test]
fn what_cannot_work_by_its_shapes_is_refused_before_anything_runs() {
    own_process!();
    const SAMPLES: usize = 1_000_000;
    let (model, data) = (model(), vectors(WIDTH, WIDTH, SAMPLES));
    let reads = AtomicUsize::new(0);
    let data = through(&*data.train, |batch, _| {
        reads.fetch_add(1, Relaxed);
        batch
    });
    let limit = Bytes(32 << 20);
    let device = |device| DeviceInfo {
        device,
        ..processor(Some(limit))
    };
    let refused = |id, batch, schedule, ranks| {
        let (device, settings) = (device(id), classifier(STEPS, batch, ADAM));
        let job = Job {
            device: Some(&device),
            ranks,
            ..Job::new(&model, &data, &settings, schedule)
        };
        let mut events = 0;
        let error = run(&job, DeviceId::Cpu, &mut |_| events += 1).unwrap_err();
        assert_eq!((reads.load(Relaxed), events), (0, 0), "{error}");
        error
    };
    let activation = (4 * WIDTH * SAMPLES) as u64;
    // The plain step holds an activation for each of 25 layers, a plan what 8 dropouts draw, and a few more.
    let (lean, plain) = (8 + 2, 25);
    let (cpu, gpu) = (DeviceId::Cpu, DeviceId::Wgpu(0));
    let within = |planner| Request::of(planner, Some(limit));
    let free = |planner| Request::of(planner, None);
    let segments = Planner::Segments(Some(1));
    for (device, request, count, held) in [
        (cpu, within(Planner::Auto), 1, lean),
        (cpu, within(Planner::None), 1, plain),
        // What is free is the limit where there is no budget.
        (cpu, free(Planner::Auto), 1, plain),
        (cpu, free(segments), 1, plain),
        (cpu, within(Planner::Auto), 2, lean),
        (cpu, free(Planner::Auto), 2, plain),
        (gpu, within(Planner::Auto), 1, lean),
    ] {
        let check = |ranks: Ranks| {
            let schedule = ScheduleRequest::Plan(request);
            let error = refused(device, SAMPLES, schedule, ranks);
            let RunError::Infeasible(refused) = error else {
                panic!("{error}");
            };
            assert_eq!(refused.budget, limit, "{refused}");
            let own = activation / count as u64;
            let (least, smallest) = (held * own, refused.smallest.0);
            assert!(least < smallest && smallest < 2 * least, "{refused}");
            assert!(refused.smallest_of_all.0 < 2 * lean * own, "{refused}");
            // So many samples take their share of that.
            let batch = refused.batch.unwrap() as u64;
            assert!(batch * least < limit.0 * SAMPLES as u64, "{refused}");
            assert!(batch * 3 * least > limit.0 * SAMPLES as u64, "{refused}");
        };
        let reducers = in_process(count);
        thread::scope(|scope| {
            for reducer in reducers {
                scope.spawn(|| check(Ranks::new(reducer, || false)));
            }
        });
    }

    let more = ScheduleRequest::Plan(within(Planner::Auto));
    let said = refused(cpu, 2 * SAMPLES, more, Ranks::default()).to_string();
    let (_, batch) = said.split_once("which has 1000000: try `--batch ").unwrap();
    let batch: u64 = batch.trim_end_matches('`').parse().unwrap();
    assert!(
        batch * lean * activation < limit.0 * SAMPLES as u64,
        "{said}"
    );

    let settings = classifier(STEPS, SAMPLES, ADAM);
    let step = Estimated {
        model: &model,
        settings: &settings,
        target: data.target(),
        ranks: 1,
        kernels: kernels(cpu),
        process: None,
    };
    let step = MeasuredStep::estimated(&step.estimate().unwrap(), &model, &settings);
    let made = step.plan(&free(Planner::None)).unwrap();
    let given = ScheduleRequest::Given(Box::new(PlanFile::new(&made, Vec::new())));
    let error = refused(cpu, SAMPLES, given, Ranks::default());
    let RunError::NotEnough { peak, free, .. } = error else {
        panic!("{error}");
    };
    assert!(peak.0 > plain * activation && free == limit, "{error}");
}
