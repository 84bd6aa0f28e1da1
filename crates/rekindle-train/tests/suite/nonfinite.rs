//! A step that is not finite: the run stops, leaves the step out, or goes on, and its snapshot stays finite.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;

use rekindle_plan::{Planner, Request};
use rekindle_train::{
    NonFinite,
    data::{Shuffled, batch::Numbers},
    device::DeviceId,
    record::{RunRecord, StepRecord},
    run_dir::{RunDir, SnapshotEvery},
    session::{Event, Job, RunError, ScheduleRequest, run},
    settings::{Accumulate, OnNonFinite, RateSchedule, TrainSettings},
};

use crate::{
    jobs::through,
    resume::{ADAM, Tensors, conv_net, data, settings, tensors},
};

const STEPS: usize = 5;
/// The step whose batch holds a NaN.
const BAD: usize = 3;

/// Looks at the snapshot that lies in the folder while each step is done: that of the step before.
pub struct Look<'a> {
    folder: &'a Path,
    pub steps: Vec<StepRecord>,
    pub snapshots: Vec<Option<Tensors>>,
    pub found: Vec<NonFinite>,
    notices: Vec<String>,
}

impl<'a> Look<'a> {
    pub fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            steps: Vec::new(),
            snapshots: Vec::new(),
            found: Vec::new(),
            notices: Vec::new(),
        }
    }
}

impl Look<'_> {
    pub fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Stepped { step, .. } => {
                self.steps.push(step.clone());
                let mut files = std::fs::read_dir(self.folder).unwrap().flatten();
                let there =
                    files.any(|file| file.file_name().to_string_lossy().starts_with("snapshot-"));
                self.snapshots.push(there.then(|| tensors(self.folder)));
            }
            Event::NonFinite(found) => self.found.push(found.clone()),
            Event::Noticed(text) => self.notices.push(text.to_owned()),
            _ => {}
        }
    }
}

fn train<'a>(
    accumulate: usize,
    on_nonfinite: OnNonFinite,
    folder: &'a Path,
    run_dir: RunDir,
) -> (Result<RunRecord, RunError>, Look<'a>) {
    let model = conv_net();
    let split = data(&model, None);
    let settings = TrainSettings {
        steps: STEPS,
        accumulate: Accumulate::Parts(accumulate),
        eval_every: None,
        on_nonfinite,
        ..settings(ADAM)
    };
    let batches = Shuffled::new(split.train.len(), settings.batch, settings.seed).unwrap();
    // In the last part of the batch: the first has moved statistics by then.
    let bad = *batches.samples(BAD - 1, 0..settings.batch).last().unwrap();
    let poisoned = through(&*split.train, |mut batch, samples| {
        let place = samples.iter().position(|&sample| sample == bad);
        if let (Some(place), Numbers::Floats(values)) = (place, &mut batch.inputs) {
            let each = values.len() / samples.len();
            values[place * each] = f32::NAN;
        }
        batch
    });
    let schedule = ScheduleRequest::Plan(Request::of(Planner::Segments(Some(2)), None));
    let job = Job {
        run_dir: Some(run_dir),
        snapshot_every: SnapshotEvery::Steps(1),
        ..Job::new(&model, &poisoned, &settings, schedule)
    };
    let mut look = Look::new(folder);
    let record = run(&job, DeviceId::Cpu, &mut |event| look.tell(event));
    (record, look)
}

#[test]
fn a_skipped_step_changes_nothing_but_its_number() {
    own_process!();
    for accumulate in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let new = RunDir::New(folder.to_path_buf());
        let (record, look) = train(accumulate, OnNonFinite::Skip, folder, new);
        let record = record.unwrap();
        let case = format!("{accumulate} parts");
        assert_eq!((record.steps, record.nonfinite_steps), (STEPS, 1), "{case}");
        assert!(look.steps[BAD - 1].loss.is_nan());
        let skipped = look.steps.iter().map(|step| step.skipped);
        assert!(
            skipped
                .enumerate()
                .all(|(place, skipped)| skipped == (place == BAD - 1))
        );
        assert!(record.last_loss.is_finite());
        let [found] = &look.found[..] else {
            panic!("{case}: {:?}", look.found);
        };
        assert_eq!((found.step, found.handled), (BAD, OnNonFinite::Skip));
        let path = found.gradient.clone().unwrap();
        assert!(path.starts_with("0.ops.0."), "{path}");

        let seen: Vec<_> = look.snapshots.into_iter().collect();
        // While step k is done, the snapshot is that of k - 1.
        assert!(
            seen[BAD - 1].is_some() && seen[BAD - 1] == seen[BAD],
            "{case}"
        );
        assert!(seen[BAD - 2] != seen[BAD - 1], "{case}");
        assert!(seen[BAD] != seen[BAD + 1], "{case}");
        assert!(look.notices.is_empty(), "{:?}", look.notices);
    }
}

#[test]
fn a_run_that_stops_keeps_the_state_before_and_goes_on_from_it() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let [stopped, skipped] = ["stopped", "skipped"].map(|name| folder.path().join(name));
    let new = RunDir::New(stopped.clone());
    let (stop, look) = train(2, OnNonFinite::Stop, &stopped, new);
    let error = stop.unwrap_err();
    let RunError::NonFinite(found) = &error else {
        panic!("{error}");
    };
    assert_eq!((found.step, found.epoch, found.batch), (BAD, 1, BAD));
    assert!(found.stage.is_some(), "{error}");
    assert!(error.to_string().contains("step 3 is NaN"), "{error}");
    assert_eq!(look.snapshots.len(), BAD - 1);

    let new = RunDir::New(skipped.clone());
    let (whole, look) = train(2, OnNonFinite::Skip, &skipped, new);
    let before = look.snapshots.into_iter().nth(BAD - 1).unwrap().unwrap();
    assert!(tensors(&stopped).model == before.model);

    let on = RunDir::Resume(stopped.clone());
    let (resumed, _) = train(2, OnNonFinite::Skip, &stopped, on);
    let (resumed, whole) = (resumed.unwrap(), whole.unwrap());
    assert_eq!(resumed.last_loss.to_bits(), whole.last_loss.to_bits());
    assert!(tensors(&stopped).model == tensors(&skipped).model);
}

#[test]
fn a_state_that_is_not_finite_never_replaces_a_snapshot() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let new = RunDir::New(folder.to_path_buf());
    let (record, look) = train(1, OnNonFinite::Continue, folder, new);
    let record = record.unwrap();
    assert_eq!(record.nonfinite_steps, STEPS - BAD + 1);
    assert!(record.last_loss.is_nan());
    assert_eq!(look.notices.len(), 3);
    for (step, notice) in (BAD..).zip(&look.notices) {
        let withheld = format!("no snapshot after step {step}: ");
        assert!(notice.starts_with(&withheld), "{notice}");
    }
    let before = look.snapshots.into_iter().nth(BAD - 1).unwrap().unwrap();
    assert!(tensors(folder) == before);
}

/// A learning rate that `f32` does not hold makes parameters infinite in the first update.
#[test]
fn skipping_ends_where_the_parameters_are_not_finite() {
    let model = conv_net();
    let split = data(&model, None);
    let settings = TrainSettings {
        steps: STEPS,
        learning_rate: Some(1e39),
        schedule: RateSchedule::Constant,
        warmup_steps: None,
        final_rate: 0.0,
        eval_every: None,
        on_nonfinite: OnNonFinite::Skip,
        ..settings(ADAM)
    };
    let plain = ScheduleRequest::Plan(Request::default());
    let job = Job::new(&model, &*split.train, &settings, plain);
    let mut steps = 0;
    let ended = run(&job, DeviceId::Cpu, &mut |event| {
        steps += usize::from(matches!(event, Event::Stepped { .. }));
    });
    let error = ended.unwrap_err();
    let RunError::NonFinite(found) = &error else {
        panic!("{error}");
    };
    assert_eq!((steps, found.step), (1, 2));
    assert!(found.state.is_some());
    let words = "is not finite, so that skipping steps changes nothing";
    assert!(error.to_string().contains(words), "{error}");
}
