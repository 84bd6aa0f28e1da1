//! A run that was stopped and resumed equals one that was not, bit for bit, and what is wrong with a run folder is said.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use rekindle::Dtype;
use rekindle_plan::{Planner, Request};
use rekindle_train::{
    FileError,
    data::{Split, TargetKind, open, settings::Source, text::Predict},
    device::DeviceId,
    model::spec::{ElementKind, LayerSpec, ModelSpec, Padding, SampleShape},
    record::{EvalRecord, RunRecord, StepRecord},
    run_dir::{RunDir, SnapshotEvery, read_record},
    session::{Event, Job, RunError, ScheduleRequest, run},
    settings::{LossScale, OnNonFinite, OptimizerKind, RateSchedule, TrainSettings},
};

use crate::jobs::{self, Optimizer};

const CLASSES: usize = 5;
const SAMPLES: usize = 40;
const STEPS: usize = 6;
const HALF: usize = 3;

pub const ADAM: Optimizer = (OptimizerKind::Adam, 0.0, 0.0);
const ADAM_W: Optimizer = (OptimizerKind::AdamW, 0.0, 0.01);
const SGD: Optimizer = (OptimizerKind::Sgd, 0.9, 1e-4);

fn linear(out: usize) -> LayerSpec {
    LayerSpec::Linear { out, bias: true }
}

fn mlp() -> ModelSpec {
    ModelSpec {
        input: SampleShape::float([12]),
        layers: vec![
            linear(16),
            LayerSpec::Gelu,
            LayerSpec::Dropout { p: 0.2 },
            linear(16),
            LayerSpec::LayerNorm,
            LayerSpec::Relu,
            linear(CLASSES),
        ],
    }
}

pub fn conv_net() -> ModelSpec {
    let conv = LayerSpec::Conv2d {
        out: 4,
        kernel: [3, 3],
        stride: [1, 1],
        padding: Padding::Same,
        bias: false,
    };
    let norm = LayerSpec::BatchNorm;
    let block = [conv, norm, LayerSpec::Relu];
    let mut layers = block.to_vec();
    layers.push(LayerSpec::Dropout { p: 0.25 });
    layers.push(LayerSpec::Residual(block.to_vec()));
    layers.extend(block);
    layers.extend([LayerSpec::Flatten, linear(CLASSES)]);
    ModelSpec {
        input: SampleShape::float([2, 6, 6]),
        layers,
    }
}

pub fn data(model: &ModelSpec, source: Option<Source>) -> Split {
    let synthetic = Source::Synthetic {
        shape: model.input.dims.clone(),
        vocab: None,
        target: TargetKind::Classes(CLASSES),
        samples: SAMPLES,
        seed: 7,
    };
    open(&source.unwrap_or(synthetic), 0.3, 1).unwrap()
}

pub fn settings((optimizer, momentum, weight_decay): Optimizer) -> TrainSettings {
    TrainSettings {
        steps: STEPS,
        batch: 4,
        seed: 11,
        optimizer,
        momentum,
        weight_decay: Some(weight_decay),
        learning_rate: Some(0.01),
        schedule: RateSchedule::WarmupCosine,
        warmup_steps: Some(2),
        final_rate: 0.001,
        update: rekindle_train::settings::UpdateChoice::After,
        clip_norm: Some(1.0),
        eval_every: Some(2),
        ..TrainSettings::default()
    }
}

/// Makes the learning rate the same at every step.
fn constant(settings: &mut TrainSettings, rate: f64) {
    settings.learning_rate = Some(rate);
    settings.schedule = RateSchedule::Constant;
}

/// Does something after a step, and may stop the run there. Keeps what it is told.
struct After<F: FnMut(usize) -> ControlFlow<()>> {
    each: F,
    steps: Vec<StepRecord>,
    evaluations: Vec<EvalRecord>,
    notices: Vec<String>,
    /// The step that the first plan is for.
    first: usize,
}

impl<F: FnMut(usize) -> ControlFlow<()>> After<F> {
    fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Planned { step, .. } => self.first = step,
            Event::Stepped { step, stop, .. } => {
                self.steps.push(step.clone());
                *stop = (self.each)(step.step).is_break();
            }
            Event::Evaluated(evaluation) => self.evaluations.push(evaluation.clone()),
            Event::Noticed(text) | Event::WrittenAgain(text) | Event::Unwritten(text) => {
                self.notices.push(text.to_owned());
            }
            _ => {}
        }
    }
}

/// What a run left: in its folder, where it has one.
#[derive(Debug)]
struct Ran {
    record: RunRecord,
    steps: Vec<StepRecord>,
    evaluations: Vec<EvalRecord>,
    notices: Vec<String>,
    first: usize,
}

struct Case {
    model: ModelSpec,
    settings: TrainSettings,
    source: Option<Source>,
    segments: usize,
    snapshot_every: SnapshotEvery,
    keep_snapshots: usize,
    weights: Option<PathBuf>,
}

impl Case {
    fn new(model: ModelSpec, optimizer: Optimizer) -> Self {
        Self {
            model,
            settings: settings(optimizer),
            source: None,
            segments: 1,
            snapshot_every: SnapshotEvery::Steps(HALF),
            keep_snapshots: 2,
            weights: None,
        }
    }

    fn run(
        &self,
        run_dir: Option<RunDir>,
        each: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Ran, Box<RunError>> {
        let data = data(&self.model, self.source.clone());
        let schedule =
            ScheduleRequest::Plan(Request::of(Planner::Segments(Some(self.segments)), None));
        let job = Job {
            eval: data.eval.as_deref(),
            run_dir: run_dir.clone(),
            snapshot_every: self.snapshot_every,
            keep_snapshots: self.keep_snapshots,
            weights: self.weights.clone(),
            ..Job::new(&self.model, &*data.train, &self.settings, schedule)
        };
        let mut after = After {
            each,
            steps: Vec::new(),
            evaluations: Vec::new(),
            notices: Vec::new(),
            first: 0,
        };
        let record = run(&job, DeviceId::Cpu, &mut |event| after.tell(event))?;
        let (steps, evaluations) = match &run_dir {
            None => (after.steps, after.evaluations),
            Some(dir) => (jobs::steps(dir.folder()), jobs::evaluations(dir.folder())),
        };
        Ok(Ran {
            record,
            steps,
            evaluations,
            notices: after.notices,
            first: after.first,
        })
    }

    fn refused(&self, run_dir: RunDir) -> FileError {
        match self.run(Some(run_dir), go_on) {
            Err(error) => match *error {
                RunError::File(error) => error,
                other => panic!("a folder's error was expected, not {other}"),
            },
            Ok(_) => panic!("a folder's error was expected"),
        }
    }
}

fn go_on(_step: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn stop_at(last: usize) -> impl FnMut(usize) -> ControlFlow<()> {
    move |step| match step == last {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// A run that was stopped after [`HALF`] steps.
fn half_a_run(case: &Case, folder: &Path) {
    let run_dir = Some(RunDir::New(folder.to_path_buf()));
    let record = case.run(run_dir, stop_at(HALF)).unwrap().record;
    assert!(record.interrupted);
    assert_eq!(record.steps, HALF);
}

/// Steps after which the folder has a snapshot.
fn snapshots(folder: &Path) -> Vec<usize> {
    let names = fs::read_dir(folder).unwrap().map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        Some(name.strip_prefix("snapshot-")?.parse().unwrap())
    });
    let mut steps: Vec<usize> = names.flatten().collect();
    steps.sort_unstable();
    steps
}

fn newest_snapshot(folder: &Path) -> PathBuf {
    folder.join(format!("snapshot-{}", snapshots(folder).last().unwrap()))
}

/// Losses, rates and accuracies of all steps and evaluations; bits, so that nothing is lost in a comparison.
fn computed(ran: &Ran) -> Vec<[u64; 4]> {
    let bits = |number: Option<f64>| number.map_or(0, f64::to_bits);
    let steps = ran.steps.iter().map(|step| {
        let rate = Some(step.learning_rate);
        [
            step.step as u64,
            bits(Some(step.loss)),
            bits(step.accuracy),
            bits(rate),
        ]
    });
    let evaluations = ran.evaluations.iter().map(|evaluation| {
        [
            evaluation.step as u64,
            bits(Some(evaluation.loss)),
            bits(evaluation.accuracy),
            evaluation.samples as u64,
        ]
    });
    steps.chain(evaluations).collect()
}

/// A snapshot's state, without the progress and the loss scale.
#[derive(PartialEq)]
pub struct Tensors {
    /// The parameters and statistics by their paths.
    pub model: BTreeMap<String, Vec<u8>>,
    /// The optimizer's tensors by names of their own.
    pub optimizer: BTreeMap<String, Vec<u8>>,
    /// The optimizer's scalars.
    pub scalars: serde_json::Value,
}

/// Reads the newest snapshot as any reader of safetensors would.
pub fn tensors(folder: &Path) -> Tensors {
    let bytes = fs::read(newest_snapshot(folder)).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let run = header["__metadata__"]["run"].as_str().unwrap();
    let run: serde_json::Value = serde_json::from_str(run).unwrap();
    assert!(run["states"].is_object());
    let all = header.into_iter().filter_map(|(name, about)| {
        let places = about.get("data_offsets")?;
        let [from, to]: [usize; 2] = serde_json::from_value(places.clone()).unwrap();
        Some((name, values[from..to].to_vec()))
    });
    let (optimizer, mut model): (BTreeMap<_, _>, BTreeMap<_, _>) =
        all.partition(|(name, _)| name.starts_with("optimizer."));
    assert_eq!(model.remove("checksum").map(|sum| sum.len()), Some(4));
    Tensors {
        model,
        optimizer,
        scalars: run["states"].clone(),
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
    own_process!();
    resumes_exactly(Case::new(mlp(), SGD));
    resumes_exactly(Case::new(conv_net(), ADAM));
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let mut half = Case::new(conv_net(), ADAM_W);
        half.settings.dtype = dtype;
        // Gradients of `f16` overflow before the run stops.
        half.settings.batch = 2;
        resumes_exactly(half);
    }
}

fn resumes_exactly(mut case: Case) {
    let folder = tempfile::tempdir().unwrap();
    let [whole, killed, stopped] =
        ["whole", "killed", "stopped"].map(|name| folder.path().join(name));

    let alone = case.run(None, go_on).unwrap();
    let expected = computed(&alone);
    assert_eq!(alone.evaluations.len(), 3);

    // What lies on the disk while step 5 is done is what a process that is killed there leaves.
    let ran = case.run(Some(RunDir::New(whole.clone())), |step| {
        if step == HALF + 2 {
            copy_folder(&whole, &killed);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(
        computed(&ran.unwrap()),
        expected,
        "snapshots change nothing"
    );

    half_a_run(&case, &stopped);
    for (segments, from) in [(2, &stopped), (3, &killed)] {
        let resumed = folder.path().join(segments.to_string());
        copy_folder(from, &resumed);
        case.segments = segments;
        let newest = snapshots(from).last().copied();
        let ran = case
            .run(Some(RunDir::Resume(resumed.clone())), go_on)
            .unwrap();
        assert_eq!(computed(&ran), expected, "{segments} segments");
        assert_eq!(ran.record.resumed_at, newest);
        assert!(newest >= Some(HALF) && !ran.record.interrupted);
        let weights = |folder: &Path| fs::read(folder.join("weights.safetensors")).unwrap();
        assert!(weights(&resumed) == weights(&whole), "{segments} segments");
        let (resumed, whole) = (tensors(&resumed), tensors(&whole));
        assert!(resumed.model == whole.model, "{segments} segments");
        assert!(resumed.optimizer == whole.optimizer, "{segments} segments");
        assert_eq!(resumed.scalars, whole.scalars, "{segments} segments");
        // As many as there are, at least: statistics come on top, and the optimizer keeps one or two for each.
        let values = case.model.infer().unwrap().param_count() as usize;
        let bytes = |all: &BTreeMap<_, Vec<u8>>| all.values().map(Vec::len).sum::<usize>();
        assert!(bytes(&whole.model) >= case.settings.dtype.bytes() as usize * values);
        assert!(bytes(&whole.optimizer) >= 4 * values);
    }
}

#[test]
fn a_run_that_was_stopped_before_an_evaluation_makes_it_up() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let stopped = case
        .run(Some(RunDir::New(path.clone())), stop_at(STEPS))
        .unwrap();
    assert_eq!(stopped.evaluations.len(), 2);
    let resumed = case.run(Some(RunDir::Resume(path)), go_on).unwrap();
    assert_eq!(
        computed(&resumed),
        computed(&case.run(None, go_on).unwrap())
    );
}

#[test]
fn the_plan_of_a_resumed_run_is_for_the_step_after_its_snapshot() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let new = case.run(Some(RunDir::New(path.clone())), stop_at(HALF));
    assert_eq!(new.unwrap().first, 1);
    let resumed = case.run(Some(RunDir::Resume(path)), go_on).unwrap();
    assert_eq!(resumed.first, HALF + 1);
}

#[test]
fn more_steps_can_be_asked_for_at_a_constant_rate() {
    own_process!();
    let mut case = Case::new(conv_net(), ADAM);
    constant(&mut case.settings, 0.01);
    case.settings.eval_every = None;
    let longer = computed(&case.run(None, go_on).unwrap());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    case.settings.steps = HALF;
    case.run(Some(RunDir::New(path.clone())), go_on).unwrap();
    case.settings.steps = STEPS;
    let mut ran = case.run(Some(RunDir::Resume(path)), go_on).unwrap();
    // The shorter run has evaluated its own last step.
    ran.evaluations
        .retain(|evaluation| evaluation.step == STEPS);
    assert_eq!(computed(&ran), longer);
}

#[test]
fn a_run_folder_holds_the_record_and_every_step() {
    own_process!();
    let case = Case::new(mlp(), ADAM);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/run");
    half_a_run(&case, &path);
    // Steps after the snapshot, as a process leaves them that is killed between two snapshots.
    let history = path.join("history.csv");
    let lines = fs::read_to_string(&history).unwrap();
    fs::write(
        &history,
        format!("{lines}4,1.0,0.5,0.1,0.1,,false\n5,1.0,0."),
    )
    .unwrap();

    case.run(Some(RunDir::Resume(path.clone())), go_on).unwrap();
    let lines = fs::read_to_string(&history).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(
        lines[0],
        "step,loss,accuracy,learning_rate,step_s,loss_scale,skipped"
    );
    assert_eq!(lines.len(), 1 + STEPS);
    let alone = case.run(None, go_on).unwrap();
    for (line, step) in lines[1..].iter().zip(&alone.steps) {
        let numbers = line.strip_suffix(",,false").unwrap().split(',');
        let numbers: Vec<f64> = numbers.map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(
            numbers[..4],
            [
                step.step as f64,
                step.loss,
                step.accuracy.unwrap(),
                step.learning_rate,
            ]
        );
    }
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("run.json")).unwrap()).unwrap();
    assert_eq!(written["steps"], STEPS);
    assert_eq!(written["interrupted"], false);
    let evaluations = fs::read_to_string(path.join("evaluations.csv")).unwrap();
    assert_eq!(evaluations.lines().count(), 1 + 3);
    assert_eq!(written["evaluation"]["step"], STEPS);
    let best = alone
        .evaluations
        .iter()
        .min_by(|a, b| a.loss.total_cmp(&b.loss));
    let best = best.unwrap().step;
    assert_eq!(written["best_evaluation"]["step"], best);
    // The newest two snapshots, and the best; and besides them these.
    let kept = snapshots(&path);
    assert!(
        kept.len() <= 3 && kept.contains(&best) && kept.contains(&STEPS),
        "{kept:?}"
    );
    let files = [
        "lock",
        "history.csv",
        "evaluations.csv",
        "run.json",
        "weights.safetensors",
    ];
    assert!(files.iter().all(|file| path.join(file).is_file()));
    assert_eq!(
        fs::read_dir(&path).unwrap().count(),
        kept.len() + files.len()
    );
}

#[test]
fn a_record_read_back_is_the_one_that_was_written() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let returned = case
        .run(Some(RunDir::New(path.clone())), go_on)
        .unwrap()
        .record;

    let read = read_record(&path).unwrap();
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("run.json")).unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), written);
    assert_eq!(read.measured.peak, returned.measured.peak);
    assert_eq!(read.phases.len(), returned.phases.len());
}

#[test]
fn a_run_with_a_folder_traces_one_step_and_leaves_its_phases_and_its_median_alone() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let record = case.run(None, go_on).unwrap().record;
    assert_eq!(record.timeline, None);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let Ran { record, steps, .. } = case.run(Some(RunDir::New(path.clone())), go_on).unwrap();
    let phased: Vec<_> = record.phases.iter().map(|phases| phases.step).collect();
    assert_eq!(phased, [1, 2, 3, STEPS]);
    let timeline = record.timeline.unwrap();
    assert_eq!(timeline.step, 4);
    let predicted = timeline
        .actions
        .iter()
        .map(|action| action.predicted_at_peak.total());
    // Recording and planning took more than a step of this tiny model: that is the predicted peak.
    assert!(predicted.max() <= Some(record.plan.predicted_in_use));
    assert_eq!(record.plan.predicted_in_use, record.measured.in_use);
    let mut counted: Vec<f64> = steps
        .iter()
        .filter(|step| ![1, 4].contains(&step.step))
        .map(|step| step.step_s.0)
        .collect();
    counted.sort_by(f64::total_cmp);
    assert!(counted.contains(&record.measured.step.0));

    // Few steps: the last one.
    let mut short = Case::new(mlp(), SGD);
    short.settings.steps = 2;
    let path = folder.path().join("short");
    let record = short.run(Some(RunDir::New(path)), go_on).unwrap().record;
    assert_eq!(record.timeline.unwrap().step, 2);
}

#[test]
fn a_record_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display();
    let refusal = || read_record(folder.path()).unwrap_err().to_string();
    assert_eq!(
        refusal(),
        format!(
            "{shown}: holds no record of a run: `train -o` writes one with every snapshot and at the run's end"
        )
    );
    let path = folder.path().join("run.json");
    fs::write(&path, r#"{"format": "rekindle-run/9", "speed": 3}"#).unwrap();
    assert_eq!(
        refusal(),
        format!(
            "{}: not a run's record: it has the format `rekindle-run/9`, but this version reads `rekindle-run/3`",
            path.display()
        )
    );
    fs::write(&path, r#"{"format": "rekindle-run/3"}"#).unwrap();
    assert!(refusal().contains("not a run's record: missing field"));
}

#[test]
fn a_new_run_spares_an_old_one() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    half_a_run(&case, &path);
    let shown = path.display();
    let error = case.refused(RunDir::New(path.clone()));
    assert_eq!(
        error.to_string(),
        format!(
            "{shown}: already holds a run: continue it with `--resume {shown}`, or name another folder"
        )
    );
    // Killed before its first snapshot.
    for step in snapshots(&path) {
        fs::remove_file(path.join(format!("snapshot-{step}"))).unwrap();
    }
    let error = case.refused(RunDir::New(path.clone()));
    assert!(error.reason().starts_with("already holds a run"), "{error}");
    let ran = case.run(Some(RunDir::Resume(path.clone())), go_on).unwrap();
    let begins = format!("{shown}: the run has no snapshot and starts again");
    assert_eq!(ran.notices, [begins]);
    assert_eq!(ran.record.resumed_at, None);
    assert_eq!(computed(&ran), computed(&case.run(None, go_on).unwrap()));

    let empty = path.join("empty");
    fs::create_dir(&empty).unwrap();
    let shown = empty.display();
    assert_eq!(
        case.refused(RunDir::Resume(empty.clone())).to_string(),
        format!("{shown}: holds no run to resume: `rekindle train CONFIG -o {shown}` starts one")
    );
}

#[test]
fn what_must_not_change_is_named_with_both_values() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    half_a_run(&Case::new(mlp(), ADAM), &path);
    let refused = |change: fn(&mut Case)| {
        let mut case = Case::new(mlp(), ADAM);
        change(&mut case);
        let error = case.refused(RunDir::Resume(path.clone()));
        let reason = error.reason().replace(" in the snapshot, but", "");
        let reason = reason
            .strip_suffix(": keep it, or start a new run")
            .unwrap();
        let (what, why) = reason.split_once(" now").unwrap();
        format!("{what}{why}")
            .replace('`', "")
            .replacen(" is ", " ", 1)
    };
    assert_eq!(refused(|case| case.settings.batch = 8), "batch 4 8");
    assert_eq!(refused(|case| case.settings.seed = 12), "seed 11 12");
    assert_eq!(
        refused(|case| case.settings.dtype = Dtype::F16),
        r#"dtype "f32" "f16""#
    );
    assert_eq!(
        refused(|case| case.settings.optimizer = SGD.0),
        r#"optimizer "adam" "sgd""#
    );
    assert_eq!(
        refused(|case| constant(&mut case.settings, 0.01)),
        r#"schedule "warmup-cosine" "constant""#
    );
    assert_eq!(
        refused(|case| case.settings.steps = 8),
        r#"steps 6 8, and by schedule = "warmup-cosine" the learning rate of every step depends on it"#
    );
    assert_eq!(
        refused(|case| case.model.layers[3] = linear(17)),
        "model.layers[3].linear.out 16 17"
    );
    let other_seed = |case: &mut Case| {
        case.source = Some(Source::Synthetic {
            shape: vec![12],
            vocab: None,
            target: TargetKind::Classes(CLASSES),
            samples: SAMPLES,
            seed: 8,
        });
    };
    assert_eq!(refused(other_seed), "data.seed 7 8");
    assert_eq!(
        refused(|case| case.settings.sync_batch_norm = true),
        "sync_batch_norm false true"
    );

    // One that was to stop may skip, which `nonfinite` shows.
    let mut skips = Case::new(mlp(), ADAM);
    skips.settings.on_nonfinite = OnNonFinite::Skip;
    let path = folder.path().join("skips");
    half_a_run(&skips, &path);
    for (other, named) in [
        (OnNonFinite::Stop, "\"stop\""),
        (OnNonFinite::Continue, "\"continue\""),
    ] {
        skips.settings.on_nonfinite = other;
        let error = skips.refused(RunDir::Resume(path.clone())).to_string();
        let says = format!("`on_nonfinite` is \"skip\" in the snapshot, but {named} now");
        assert!(error.contains(&says), "{error}");
    }

    let unscheduled = |steps| {
        let mut case = Case::new(mlp(), ADAM);
        constant(&mut case.settings, 0.01);
        case.settings.steps = steps;
        case
    };
    let path = folder.path().join("constant");
    half_a_run(&unscheduled(STEPS), &path);
    let error = unscheduled(2).refused(RunDir::Resume(path.clone()));
    assert_eq!(
        error.to_string(),
        format!(
            "{}: has done 3 steps already, but 2 are asked for: ask for at least 3",
            path.join("snapshot-3").display()
        )
    );
}

#[test]
fn a_text_of_the_same_length_is_another_one() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    let model = ModelSpec {
        input: SampleShape {
            kind: ElementKind::Token,
            dims: vec![4],
        },
        layers: vec![
            LayerSpec::Embedding { vocab: 256, dim: 2 },
            LayerSpec::Flatten,
            linear(256),
        ],
    };
    let mut case = Case::new(model, SGD);
    case.source = Some(Source::Text {
        files: vec![text.clone()],
        window: 4,
        predict: Predict::Next,
    });
    fs::write(&text, "one text of some length, read byte by byte").unwrap();
    let run = folder.path().join("run");
    half_a_run(&case, &run);
    fs::write(&text, "one text of some length, read byte by bite").unwrap();
    let error = case.refused(RunDir::Resume(run.clone()));
    assert!(error.reason().starts_with("`data.contents` is "), "{error}");
    fs::write(&text, "one text of some length, read byte by byte").unwrap();
    case.run(Some(RunDir::Resume(run)), go_on).unwrap();
}

#[test]
fn a_damaged_snapshot_is_named_and_the_one_before_it_used() {
    own_process!();
    let mut case = Case::new(conv_net(), ADAM);
    case.snapshot_every = SnapshotEvery::Steps(1);
    let expected = computed(&case.run(None, go_on).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    half_a_run(&case, &run);
    let newest = newest_snapshot(&run);
    assert_eq!(newest, run.join("snapshot-3"));
    let whole = fs::read(&newest).unwrap();
    let cut = |length: usize| whole[..length].to_vec();
    let changed = |place: usize| {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        bytes
    };
    let damages = [
        (cut(0), "after 0 bytes".to_owned()),
        (cut(27), "after 27 bytes".into()),
        (
            cut(whole.len() - 1),
            format!("after {} bytes", whole.len() - 1),
        ),
        (changed(whole.len() / 2), "checksum".into()),
        (changed(25), "cannot be read as safetensors".into()),
        (changed(35), "is not a snapshot".into()),
    ];
    for (number, (bytes, words)) in damages.into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        copy_folder(&run, &path);
        let damaged = path.join("snapshot-3");
        fs::write(&damaged, bytes).unwrap();
        let ran = case.run(Some(RunDir::Resume(path.clone())), go_on).unwrap();
        let [notice] = &ran.notices[..] else {
            panic!("{:?}", ran.notices);
        };
        assert!(
            notice.starts_with(&damaged.display().to_string()),
            "{notice}"
        );
        assert!(notice.contains(&words), "{notice}");
        assert_eq!(ran.record.resumed_at, Some(2));
        assert_eq!(computed(&ran), expected);
    }

    // None before it.
    for step in snapshots(&run) {
        fs::write(run.join(format!("snapshot-{step}")), cut(100)).unwrap();
    }
    let history = fs::read(run.join("history.csv")).unwrap();
    let message = case.refused(RunDir::Resume(run.clone())).to_string();
    assert!(message.contains("snapshots can be read"), "{message}");
    assert!(
        message.contains("start a new run in another folder"),
        "{message}"
    );
    assert!(message.contains("snapshot-3: "), "{message}");
    assert!(message.contains("it was cut short"), "{message}");
    let untouched = fs::read(run.join("history.csv")).unwrap();
    assert_eq!(
        untouched, history,
        "a run that is not resumed is not touched"
    );
}

#[test]
fn the_newest_snapshots_and_the_best_are_kept() {
    own_process!();
    let mut case = Case::new(mlp(), SGD);
    case.snapshot_every = SnapshotEvery::Steps(1);
    case.settings.steps = 30;
    case.settings.eval_every = Some(1);
    // It gets worse from some step on.
    constant(&mut case.settings, 0.3);
    case.keep_snapshots = 3;
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let ran = case.run(Some(RunDir::New(run.clone())), go_on).unwrap();
    let best = ran.record.best_evaluation.unwrap();
    let lowest = ran
        .evaluations
        .iter()
        .min_by(|a, b| a.loss.total_cmp(&b.loss));
    assert_eq!(Some(&best), lowest);
    assert!(
        best.step < 28,
        "the best is none of the last: {}",
        best.step
    );
    assert_eq!(snapshots(&run), [best.step, 28, 29, 30]);
}

#[test]
fn files_that_cannot_be_written_do_not_end_a_run() {
    own_process!();
    let mut case = Case::new(mlp(), ADAM);
    case.snapshot_every = SnapshotEvery::Steps(1);
    let expected = computed(&case.run(None, go_on).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    // A folder in the place of a file: the system refuses the file, whoever the user is.
    let in_the_way = ["run.json", "snapshot-2", "snapshot-3"].map(|name| run.join(name));
    let ran = case.run(Some(RunDir::New(run.clone())), |step| {
        for path in &in_the_way {
            match step {
                1 => fs::create_dir_all(path.join("not empty")).unwrap(),
                4 => fs::remove_dir_all(path).unwrap(),
                _ => {}
            }
        }
        ControlFlow::Continue(())
    });
    let ran = ran.unwrap();
    let said: Vec<&str> = ran.notices.iter().map(String::as_str).collect();
    let [record, snapshot, snapshot_again, record_again] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(record.contains("run.json: cannot be written"), "{record}");
    assert!(
        snapshot.contains("snapshot-2: cannot be written"),
        "{snapshot}"
    );
    assert_eq!(*snapshot_again, "the snapshot can be written again");
    assert_eq!(*record_again, "the record can be written again");
    assert_eq!(computed(&ran), expected);
    assert_eq!(read_record(&run).unwrap().steps, STEPS);
    assert!(!ran.record.interrupted);
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_before_the_first_step() {
    own_process!();
    let case = Case::new(mlp(), ADAM);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |run_dir: RunDir, start: String| {
        let error = case.refused(run_dir);
        assert!(error.to_string().starts_with(&start), "{error}");
        assert!(error.is_of_system(), "{error}");
    };
    let below: PathBuf = file.join("run");
    refused(
        RunDir::New(below.clone()),
        format!("{}: cannot be created: ", below.display()),
    );
    let missing = folder.path().join("missing");
    refused(
        RunDir::Resume(missing.clone()),
        format!("{}: cannot be read: ", missing.display()),
    );
}

#[test]
fn a_second_run_in_a_folder_is_refused_while_the_first_goes_on() {
    own_process!();
    let case = Case::new(mlp(), ADAM);
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut second = Vec::new();
    let ran = case.run(Some(RunDir::New(run.clone())), |step| {
        if step == 4 {
            second.push(case.refused(RunDir::Resume(run.clone())));
            second.push(case.refused(RunDir::New(run.clone())));
        }
        ControlFlow::Continue(())
    });
    assert_eq!(
        computed(&ran.unwrap()),
        computed(&case.run(None, go_on).unwrap())
    );
    assert_eq!(second.len(), 2);
    for error in second {
        let process = format!("is in use by process {} on ", std::process::id());
        assert!(error.to_string().contains(&process), "{error}");
    }
}

#[test]
fn weights_go_out_and_in_again() {
    own_process!();
    let mut case = Case::new(conv_net(), ADAM);
    case.settings.dtype = Dtype::Bf16;
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    case.run(Some(RunDir::New(first.clone())), go_on).unwrap();
    let weights = first.join("weights.safetensors");

    // Every gradient overflows, so every step leaves parameters and statistics alone.
    let frozen = |model: ModelSpec| {
        let mut case = Case::new(model, SGD);
        case.settings.dtype = Dtype::Bf16;
        case.settings.loss_scale = LossScale::Fixed(1e39);
        case.settings.on_nonfinite = OnNonFinite::Skip;
        case.weights = Some(weights.clone());
        case
    };
    let ran = frozen(conv_net()).run(Some(RunDir::New(second.clone())), go_on);
    assert_eq!(ran.unwrap().record.nonfinite_steps, STEPS);
    let written = fs::read(&weights).unwrap();
    assert!(fs::read(second.join("weights.safetensors")).unwrap() == written);

    let shown = weights.display().to_string();
    let refused = |model: ModelSpec| {
        let message = frozen(model).run(None, go_on).unwrap_err().to_string();
        let what = message.strip_prefix(&format!("{shown}: "));
        what.unwrap_or_else(|| panic!("{message}")).to_owned()
    };
    let changed = |change: fn(&mut Vec<LayerSpec>)| {
        let mut model = conv_net();
        change(&mut model.layers);
        refused(model)
    };
    let smaller_kernel = changed(|layers| {
        if let LayerSpec::Conv2d { kernel, .. } = &mut layers[0] {
            *kernel = [1, 1];
        }
    });
    assert_eq!(
        smaller_kernel,
        "`0.ops.0.Conv2d.weight` has the shape [4, 2, 3, 3], but [4, 2, 1, 1] in the model"
    );
    let another_layer = changed(|layers| layers.push(linear(CLASSES)));
    assert!(another_layer.starts_with("lacks `"), "{another_layer}");
    assert!(
        another_layer.ends_with(", which the model has"),
        "{another_layer}"
    );
    let no_bias = changed(|layers| {
        let last = layers.last_mut().unwrap();
        *last = LayerSpec::Linear {
            out: CLASSES,
            bias: false,
        };
    });
    assert!(
        no_bias.ends_with(".Linear.bias`, which the model lacks"),
        "{no_bias}"
    );
    fs::write(&weights, &written[..written.len() - 1]).unwrap();
    let message = refused(conv_net());
    assert!(
        message.starts_with("cannot be read as safetensors: "),
        "{message}"
    );
    fs::remove_file(&weights).unwrap();
    let error = frozen(conv_net()).run(None, go_on).unwrap_err();
    let RunError::File(error) = *error else {
        panic!("a file's error was expected, not {error}");
    };
    assert!(error.is_of_system(), "{error}");
}

#[test]
fn a_finished_run_without_snapshots_is_not_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    let mut case = Case::new(mlp(), SGD);
    case.run(Some(RunDir::New(folder.clone())), go_on).unwrap();
    for step in snapshots(&folder) {
        fs::remove_file(folder.join(format!("snapshot-{step}"))).unwrap();
    }
    let history = fs::read(folder.join("history.csv")).unwrap();
    let resume = || RunDir::Resume(folder.clone());
    let done = case.run(Some(resume()), go_on).unwrap_err();
    assert!(
        matches!(*done, RunError::Finished { steps: STEPS, .. }),
        "{done}"
    );
    case.settings.steps = 2 * STEPS;
    let lost = case.refused(resume());
    assert!(lost.reason().contains("no snapshot is left"), "{lost}");
    assert!(!lost.is_of_system());
    assert_eq!(fs::read(folder.join("history.csv")).unwrap(), history);
}

#[test]
fn what_a_history_has_lost_is_told() {
    let parent = tempfile::tempdir().unwrap();
    let [damaged, replaced] = ["damaged", "replaced"].map(|name| parent.path().join(name));
    let case = Case::new(mlp(), SGD);
    half_a_run(&case, &damaged);
    let history = damaged.join("history.csv");
    let text = fs::read_to_string(&history).unwrap();
    fs::write(&history, text.replacen("\n2,", "\nx,", 1)).unwrap();
    let ran = case.run(Some(RunDir::Resume(damaged)), go_on).unwrap();
    let [told] = &ran.notices[..] else {
        panic!("{:?}", ran.notices);
    };
    let words = "history.csv: the lines after that of step 1 are damaged or missing, and lost";
    assert!(told.ends_with(words), "{told}");

    let history = replaced.join("history.csv");
    let new = RunDir::New(replaced.clone());
    let ran = case.run(Some(new), |step| {
        if step == 1 {
            let columns = fs::read_to_string(&history).unwrap();
            fs::rename(&history, replaced.join("moved.csv")).unwrap();
            fs::write(&history, columns.lines().next().unwrap().to_owned() + "\n").unwrap();
        }
        go_on(step)
    });
    let notices = ran.unwrap().notices;
    let words = "history.csv: cannot be written: it was removed or replaced during the run";
    assert!(notices[0].contains(words), "{notices:?}");
    assert!(notices[1].contains("not all of its folder is written"));
    assert_eq!(notices.len(), 2);
}
