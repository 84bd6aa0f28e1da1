//! A run that was stopped and resumed equals one that was not, bit for bit, and what is wrong with a run folder is said.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use burn::tensor::TensorData;
use rekindle::{
    Dtype,
    data::{
        Split, open,
        settings::{DataSettings, Source, SyntheticTarget},
    },
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, Padding, SampleShape},
    train::{
        RunDirError,
        record::{EvalRecord, RunRecord, StepRecord},
        run_dir::{RunDir, read_record},
        session::{Job, MemoryNow, Observer, RunError, ScheduleRequest, run},
        settings::{Clip, LearningRate, LossKind, OnNonFinite, OptimizerSettings, TrainSettings},
    },
};
use rekindle_plan::{PlanRequest, PlannerKind};
use serde::de::DeserializeOwned;

const CLASSES: usize = 5;
const SAMPLES: usize = 40;
const STEPS: usize = 6;
const HALF: usize = 3;

pub const ADAM: OptimizerSettings = OptimizerSettings::Adam {
    betas: [0.9, 0.999],
    epsilon: 1e-8,
    weight_decay: 0.0,
};
const ADAM_W: OptimizerSettings = OptimizerSettings::AdamW {
    betas: [0.9, 0.999],
    epsilon: 1e-8,
    weight_decay: 0.01,
};
const SGD: OptimizerSettings = OptimizerSettings::Sgd {
    momentum: 0.9,
    weight_decay: 1e-4,
};

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
            LayerSpec::LayerNorm { epsilon: 1e-5 },
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
    let norm = LayerSpec::BatchNorm {
        epsilon: 1e-5,
        momentum: 0.1,
    };
    let block = [conv, norm, LayerSpec::Relu];
    let mut layers = block.to_vec();
    layers.push(LayerSpec::Dropout { p: 0.25 });
    layers.push(LayerSpec::Residual {
        layers: block.to_vec(),
    });
    layers.extend(block);
    layers.extend([LayerSpec::Flatten, linear(CLASSES)]);
    ModelSpec {
        input: SampleShape::float([2, 6, 6]),
        layers,
    }
}

pub fn data(model: &ModelSpec) -> Split {
    open(
        &DataSettings {
            source: Source::Synthetic {
                shape: model.input.dims.clone(),
                vocab: None,
                target: SyntheticTarget::Classes { classes: CLASSES },
                samples: SAMPLES,
                seed: 7,
            },
            eval_split: 0.3,
        },
        1,
    )
    .unwrap()
}

pub fn settings(optimizer: OptimizerSettings) -> TrainSettings {
    TrainSettings {
        steps: STEPS,
        batch: 4,
        accumulate: 1,
        seed: 11,
        dtype: Dtype::F32,
        loss: LossKind::CrossEntropy,
        optimizer,
        learning_rate: LearningRate::WarmupCosine {
            rate: 0.01,
            warmup_steps: 2,
            final_rate: 0.001,
        },
        clip: Some(Clip::GlobalNorm { max: 1.0 }),
        eval_every: Some(2),
        on_nonfinite: OnNonFinite::Stop,
    }
}

/// Does something after a step, and may stop the run there.
struct After<F: FnMut(usize) -> ControlFlow<()>>(F);

impl<F: FnMut(usize) -> ControlFlow<()>> Observer for After<F> {
    fn stepped(&mut self, step: &StepRecord, _memory: MemoryNow) -> ControlFlow<()> {
        (self.0)(step.step)
    }
}

struct Case {
    model: ModelSpec,
    settings: TrainSettings,
    segments: usize,
    snapshot_every: Option<usize>,
}

impl Case {
    fn new(model: ModelSpec, optimizer: OptimizerSettings) -> Self {
        Self {
            model,
            settings: settings(optimizer),
            segments: 1,
            snapshot_every: Some(HALF),
        }
    }

    fn run(
        &self,
        run_dir: Option<RunDir>,
        after: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<RunRecord, Box<RunError>> {
        let data = data(&self.model);
        let schedule = ScheduleRequest::Plan(PlanRequest {
            planner: PlannerKind::Uniform,
            segments: Some(self.segments),
            ..PlanRequest::default()
        });
        let job = Job {
            eval: data.eval.as_deref(),
            run_dir,
            snapshot_every: self.snapshot_every,
            ..Job::new(&self.model, &*data.train, &self.settings, schedule)
        };
        run(&job, DeviceId::Cpu, &mut After(after)).map_err(Box::new)
    }

    fn refused(&self, run_dir: RunDir) -> RunDirError {
        match self.run(Some(run_dir), |_| ControlFlow::Continue(())) {
            Err(error) => match *error {
                RunError::RunDir(error) => error,
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
    let record = case
        .run(Some(RunDir::New(folder.to_path_buf())), stop_at(HALF))
        .unwrap();
    assert!(record.interrupted);
    assert_eq!(record.steps, HALF);
}

/// Losses, rates and accuracies of all steps and evaluations; bits, so that nothing is lost in a comparison.
fn computed(record: &RunRecord) -> Vec<[u64; 4]> {
    let bits = |number: Option<f64>| number.map_or(0, f64::to_bits);
    let steps = record.history.iter().map(|step| {
        let rate = Some(step.learning_rate);
        [
            step.step as u64,
            bits(Some(step.loss)),
            bits(step.accuracy),
            bits(rate),
        ]
    });
    let evaluations = record.evaluations.iter().map(|evaluation| {
        [
            evaluation.step as u64,
            bits(Some(evaluation.loss)),
            bits(evaluation.accuracy),
            evaluation.samples as u64,
        ]
    });
    steps.chain(evaluations).collect()
}

/// A snapshot's tensors, without the progress, which holds times, and the checksum.
#[derive(PartialEq)]
pub struct Tensors {
    /// Bytes of the parameters and statistics.
    pub model: Vec<Vec<u8>>,
    /// All bytes of the optimizer's state, with the ids of the parameters that it belongs to.
    optimizer: Vec<u8>,
}

pub fn tensors(folder: &Path) -> Tensors {
    fn take<T: DeserializeOwned>(bytes: &mut &[u8]) -> T {
        let config = bincode::config::standard();
        let (value, read) = bincode::serde::decode_from_slice(bytes, config).unwrap();
        *bytes = &bytes[read..];
        value
    }
    let bytes = fs::read(folder.join("snapshot")).unwrap();
    let mut left = &bytes["rekindle-snapshot/2\n".len()..bytes.len() - 4];
    take::<(String, Vec<StepRecord>, Vec<EvalRecord>)>(&mut left);
    let tensors: usize = take(&mut left);
    let model = (0..tensors)
        .map(|_| take::<(u64, TensorData)>(&mut left).1.as_bytes().to_vec())
        .collect();
    Tensors {
        model,
        optimizer: left.to_vec(),
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
    for model in [mlp(), conv_net()] {
        for optimizer in [ADAM, ADAM_W, SGD] {
            resumes_exactly(Case::new(model.clone(), optimizer));
        }
    }
    let mut half = Case::new(conv_net(), ADAM_W);
    half.settings.dtype = Dtype::Bf16;
    resumes_exactly(half);
}

fn resumes_exactly(mut case: Case) {
    let folder = tempfile::tempdir().unwrap();
    let [whole, killed, stopped] =
        ["whole", "killed", "stopped"].map(|name| folder.path().join(name));

    let alone = case.run(None, go_on).unwrap();
    let expected = computed(&alone);
    assert_eq!(alone.evaluations.len(), 3);

    // What lies on the disk while step 5 is done is what a process that is killed there leaves.
    let record = case.run(Some(RunDir::New(whole.clone())), |step| {
        if step == HALF + 2 {
            copy_folder(&whole, &killed);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(
        computed(&record.unwrap()),
        expected,
        "snapshots change nothing"
    );

    half_a_run(&case, &stopped);
    for (segments, from) in [(1, &killed), (2, &stopped), (3, &killed)] {
        let resumed = folder.path().join(segments.to_string());
        copy_folder(from, &resumed);
        case.segments = segments;
        let record = case
            .run(Some(RunDir::Resume(resumed.clone())), go_on)
            .unwrap();
        assert_eq!(computed(&record), expected, "{segments} segments");
        assert_eq!(record.resumed_at, Some(HALF));
        assert!(!record.interrupted);
        let (resumed, whole) = (tensors(&resumed), tensors(&whole));
        assert!(resumed.model == whole.model, "{segments} segments");
        // Ids are drawn anew in every run, so only parts of the same run have the same.
        if from == &killed {
            assert!(resumed.optimizer == whole.optimizer, "{segments} segments");
        }
        // As many as there are, at least: statistics come on top, and the optimizer keeps one or two for each.
        let values = case.model.infer().unwrap().param_count() as usize;
        assert!(whole.model.concat().len() >= case.settings.dtype.bytes() as usize * values);
        assert!(whole.optimizer.len() > 4 * values);
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
fn more_steps_can_be_asked_for_at_a_constant_rate() {
    own_process!();
    let mut case = Case::new(conv_net(), ADAM);
    case.settings.learning_rate = LearningRate::Constant { rate: 0.01 };
    case.settings.eval_every = None;
    let longer = computed(&case.run(None, go_on).unwrap());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    case.settings.steps = HALF;
    case.run(Some(RunDir::New(path.clone())), go_on).unwrap();
    case.settings.steps = STEPS;
    let mut record = case.run(Some(RunDir::Resume(path)), go_on).unwrap();
    // The shorter run has evaluated its own last step.
    record
        .evaluations
        .retain(|evaluation| evaluation.step == STEPS);
    assert_eq!(computed(&record), longer);
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
    fs::write(&history, format!("{lines}4,1.0,0.5,0.1,0.1\n5,1.0,0.")).unwrap();

    let record = case.run(Some(RunDir::Resume(path.clone())), go_on).unwrap();
    let lines = fs::read_to_string(&history).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(lines[0], "step,loss,accuracy,learning_rate,step_s");
    assert_eq!(lines.len(), 1 + STEPS);
    for (line, step) in lines[1..].iter().zip(&record.history) {
        let numbers: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(
            numbers,
            [
                step.step as f64,
                step.loss,
                step.accuracy.unwrap(),
                step.learning_rate,
                step.step_s.0
            ]
        );
    }
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("run.json")).unwrap()).unwrap();
    assert_eq!(written["steps"], STEPS);
    assert_eq!(written["interrupted"], false);
    assert_eq!(written["evaluations"].as_array().unwrap().len(), 3);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
}

#[test]
fn a_record_read_back_is_the_one_that_was_written() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let returned = case.run(Some(RunDir::New(path.clone())), go_on).unwrap();

    let read = read_record(&path).unwrap();
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("run.json")).unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), written);
    assert_eq!(read.measured_peak_bytes, returned.measured_peak_bytes);
    assert_eq!(read.phases.len(), returned.phases.len());
}

#[test]
fn a_run_with_a_folder_traces_one_step_and_leaves_its_phases_and_its_median_alone() {
    own_process!();
    let case = Case::new(mlp(), SGD);
    let record = case.run(None, go_on).unwrap();
    assert_eq!(record.timeline, None);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let record = case.run(Some(RunDir::New(path.clone())), go_on).unwrap();
    let phased: Vec<_> = record.phases.iter().map(|phases| phases.step).collect();
    assert_eq!(phased, [1, 2, 3, STEPS]);
    let timeline = record.timeline.unwrap();
    assert_eq!(timeline.step, 4);
    let predicted = timeline
        .actions
        .iter()
        .map(|action| action.predicted_at_peak.total());
    // Recording and planning took more than a step of this tiny model: that is the predicted peak.
    assert!(predicted.max() <= Some(record.in_use.predicted_bytes));
    assert_eq!(record.in_use.predicted_bytes, record.in_use.measured_bytes);
    let mut counted: Vec<f64> = record
        .history
        .iter()
        .filter(|step| ![1, 4].contains(&step.step))
        .map(|step| step.step_s.0)
        .collect();
    counted.sort_by(f64::total_cmp);
    assert!(counted.contains(&record.measured_step_s.0));

    // Few steps: the last one.
    let mut short = Case::new(mlp(), SGD);
    short.settings.steps = 2;
    let path = folder.path().join("short");
    let record = short.run(Some(RunDir::New(path)), go_on).unwrap();
    assert_eq!(record.timeline.unwrap().step, 2);
}

#[test]
fn a_record_that_cannot_be_read_is_refused() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display();
    let refusal = || read_record(folder.path()).unwrap_err().to_string();
    assert_eq!(
        refusal(),
        format!(
            "{shown}: holds no record of a run: `train -o` writes one at every evaluation and at the run's end"
        )
    );
    let path = folder.path().join("run.json");
    fs::write(&path, r#"{"format": "rekindle-run/9", "speed": 3}"#).unwrap();
    assert_eq!(
        refusal(),
        format!(
            "{}: a record of the format `rekindle-run/9`, but this version reads `rekindle-run/1`",
            path.display()
        )
    );
    fs::write(&path, r#"{"format": "rekindle-run/1"}"#).unwrap();
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
    fs::remove_file(path.join("snapshot")).unwrap();
    let error = case.refused(RunDir::New(path.clone()));
    assert!(matches!(error, RunDirError::HoldsRemains { .. }), "{error}");
    let error = case.refused(RunDir::Resume(path.clone()));
    assert_eq!(
        error.to_string(),
        format!("{shown}: holds no snapshot, so there is nothing to resume")
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
        match error {
            RunDirError::Mismatch {
                field,
                recorded,
                wanted,
                ..
            } => [field, recorded, wanted].join(" "),
            other => other.to_string(),
        }
    };
    assert_eq!(refused(|case| case.settings.batch = 8), "batch 4 8");
    assert_eq!(refused(|case| case.settings.seed = 12), "seed 11 12");
    assert_eq!(
        refused(|case| case.settings.dtype = Dtype::F16),
        r#"dtype "f32" "f16""#
    );
    assert_eq!(
        refused(|case| case.settings.optimizer = SGD),
        r#"optimizer.type "adam" "sgd""#
    );
    assert_eq!(
        refused(|case| case.settings.learning_rate = LearningRate::Constant { rate: 0.01 }),
        r#"learning_rate.type "warmup_cosine" "constant""#
    );
    assert_eq!(refused(|case| case.settings.steps = 8), "steps 6 8");
    assert_eq!(
        refused(|case| case.model.layers[3] = linear(17)),
        "model.layers[3].out 16 17"
    );

    let constant = |steps| {
        let mut case = Case::new(mlp(), ADAM);
        case.settings.learning_rate = LearningRate::Constant { rate: 0.01 };
        case.settings.steps = steps;
        case
    };
    let path = folder.path().join("constant");
    half_a_run(&constant(STEPS), &path);
    let error = constant(2).refused(RunDir::Resume(path.clone()));
    assert_eq!(
        error.to_string(),
        format!(
            "{}: has done 3 steps already, but 2 are asked for: ask for at least 3",
            path.join("snapshot").display()
        )
    );
}

#[test]
fn a_damaged_snapshot_is_named() {
    own_process!();
    let case = Case::new(conv_net(), ADAM);
    let folder = tempfile::tempdir().unwrap();
    half_a_run(&case, folder.path());
    let file = folder.path().join("snapshot");
    let whole = fs::read(&file).unwrap();
    let history = fs::read(folder.path().join("history.csv")).unwrap();
    let error = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let error = case.refused(RunDir::Resume(folder.path().to_path_buf()));
        let text = error.to_string();
        assert!(text.starts_with(&file.display().to_string()), "{text}");
        error
    };
    for length in [0, 5, 20, 27, whole.len() / 2, whole.len() - 1] {
        let error = error(&whole[..length]);
        assert!(
            matches!(error, RunDirError::Truncated { bytes, .. } if bytes == length as u64),
            "{length} bytes: {error}"
        );
    }
    for place in [25, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        let error = error(&bytes);
        assert!(
            matches!(error, RunDirError::Checksum { .. }),
            "byte {place}: {error}"
        );
    }
    let error = error(b"something else that has its length");
    assert!(matches!(error, RunDirError::Format { .. }), "{error}");
    assert_eq!(
        fs::read(folder.path().join("history.csv")).unwrap(),
        history,
        "a run that is not resumed is not touched"
    );
    fs::write(&file, &whole).unwrap();
    case.run(Some(RunDir::Resume(folder.path().to_path_buf())), go_on)
        .unwrap();
}

#[test]
fn what_the_system_refuses_is_told_apart_and_spares_the_snapshot() {
    own_process!();
    let case = Case::new(mlp(), ADAM);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |run_dir: RunDir, start: String| {
        let error = RunError::from(case.refused(run_dir));
        assert!(error.to_string().starts_with(&start), "{error}");
        assert!(error.is_refused_file(), "{error}");
    };
    let below: PathBuf = file.join("run");
    refused(
        RunDir::New(below.clone()),
        format!("{}: cannot be created: ", below.display()),
    );
    let missing = folder.path().join("missing");
    refused(
        RunDir::Resume(missing.clone()),
        format!("{}: cannot be read: ", missing.join("snapshot").display()),
    );

    let run_dir = folder.path().join("run");
    half_a_run(&case, &run_dir);
    let before = fs::read(run_dir.join("snapshot")).unwrap();
    // A folder where the next snapshot would be written: the system refuses it, whoever the user is.
    let in_the_way = run_dir.join("snapshot.new");
    fs::create_dir(&in_the_way).unwrap();
    refused(
        RunDir::Resume(run_dir.clone()),
        format!(
            "{}: cannot be written: ",
            run_dir.join("snapshot").display()
        ),
    );
    assert!(fs::read(run_dir.join("snapshot")).unwrap() == before);
    fs::remove_dir(&in_the_way).unwrap();
    let record = case.run(Some(RunDir::Resume(run_dir)), go_on).unwrap();
    assert_eq!(computed(&record), computed(&case.run(None, go_on).unwrap()));
}
