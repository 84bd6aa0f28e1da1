//! What is to be trained, and where its schedule comes from.

use std::{ops::Range, path::PathBuf};

use rekindle::{
    meter::Count,
    record::{
        RecordError,
        driver::{PlanElsewhere, Wanted, agree},
    },
};
use rekindle_plan::{Bytes, Request};

use super::{PlanFile, RunError};
use crate::{
    data::Dataset,
    device::DeviceInfo,
    model::spec::ModelSpec,
    ranks::Ranks,
    record::Measured,
    run_dir::{RunDir, SnapshotEvery},
    settings::{StateChoice, TrainSettings, UpdateChoice},
    update::{Updates, updates},
};

/// Where a run's schedule comes from.
pub enum ScheduleRequest {
    /// A planner finds it on the measured chain.
    Plan(Request),
    /// It was made before.
    Given(Box<PlanFile>),
}

impl ScheduleRequest {
    /// What the step is planned by.
    pub(super) fn wanted(&self) -> Result<Wanted, RunError> {
        Ok(match self {
            Self::Plan(request) => request.into(),
            Self::Given(file) => file.order()?.into(),
        })
    }

    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            Self::Given(file) => file.plan.budget,
        }
    }
}

/// Runs so many plain steps in another process, where that can be.
pub type PlainSteps<'a> = &'a (dyn Fn(usize) -> Option<Measured> + Sync);

/// [`Job::keep_snapshots`], where nothing else is asked for.
pub const KEEP_SNAPSHOTS: usize = 2;

/// What is to be trained, on what, and how.
pub struct Job<'a> {
    /// What the run is called in its record, such as the path of its config.
    pub name: &'a str,
    /// The model.
    pub model: &'a ModelSpec,
    /// Samples to train on.
    pub train: &'a dyn Dataset,
    /// Samples to evaluate on.
    pub eval: Option<&'a dyn Dataset>,
    /// Steps, batch, optimizer and so on.
    pub settings: &'a TrainSettings,
    /// Where the schedule comes from.
    pub schedule: ScheduleRequest,
    /// Whether plain steps are run and measured after the training, in turns with its own; not where ranks share it.
    pub compare: bool,
    /// Runs the plain steps where they would exceed the budget, or there is none. Where it is given, runs that are long enough
    /// compare themselves without being asked.
    pub plain_elsewhere: Option<PlainSteps<'a>>,
    /// The device as it was probed, if it was. A plan that needs more than it can still give is not run, and neither is a
    /// model with a tensor that is larger than its buffers.
    pub device: Option<&'a DeviceInfo>,
    /// Find plans somewhere else, where that can be: planners take memory, which on the processor is the memory that
    /// the budget bounds. `None`, or an answer of `None`, plans here.
    pub planner: Option<PlanElsewhere>,
    /// Which bytes the budget bounds.
    pub count: Count,
    /// Whether the first three steps are [tracked](crate::tracker): their passes are [told](super::Event::Tracked).
    pub track: bool,
    /// The most bytes of the host's memory in which a plan's tensors and optimizer state may wait: `None` keeps them on the
    /// device. For GPUs.
    pub host: Option<Bytes>,
    /// Where the run leaves its record, its history and its snapshots, if anywhere.
    pub run_dir: Option<RunDir>,
    /// When it takes snapshots.
    pub snapshot_every: SnapshotEvery,
    /// How many of the newest snapshots are kept, at least one. That of the best evaluation is kept besides.
    pub keep_snapshots: usize,
    /// Weights that a new run starts from, as safetensors, instead of random ones.
    pub weights: Option<PathBuf>,
    /// The ranks that share the job; `settings.batch` is what all of them take. Budget and memory are this rank's own, and
    /// so are folder and weights, which only rank 0 has.
    pub ranks: Ranks,
}

impl<'a> Job<'a> {
    /// A job with nothing beyond the training itself: no evaluation, no comparison, no files.
    #[must_use]
    pub fn new(
        model: &'a ModelSpec,
        train: &'a dyn Dataset,
        settings: &'a TrainSettings,
        schedule: ScheduleRequest,
    ) -> Self {
        Self {
            name: "",
            model,
            train,
            eval: None,
            settings,
            schedule,
            compare: false,
            plain_elsewhere: None,
            device: None,
            planner: None,
            count: Count::default(),
            track: false,
            host: None,
            run_dir: None,
            snapshot_every: SnapshotEvery::default(),
            keep_snapshots: KEEP_SNAPSHOTS,
            weights: None,
            ranks: Ranks::default(),
        }
    }

    /// Bytes that the device can still give, where that is known.
    pub(super) fn free(&self) -> Option<Bytes> {
        self.device.and_then(|device| device.free_bytes)
    }

    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        self.schedule.budget()
    }

    /// This rank's places among the samples of a step.
    #[must_use]
    pub fn part(&self) -> Range<usize> {
        self.ranks.part(self.settings.batch)
    }

    /// Samples that this rank runs at once.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.part().len() / self.settings.parts()
    }

    /// The places of one of those parts among the samples of a step.
    #[must_use]
    pub fn places(&self, part: usize) -> Range<usize> {
        let (first, samples) = (self.part().start, self.micro_batch());
        first + part * samples..first + (part + 1) * samples
    }

    /// Which updates its plans may have, where the optimizer's state is whole.
    #[must_use]
    pub fn updates(&self) -> Updates {
        match (&self.schedule, self.settings.update) {
            (ScheduleRequest::Given(file), UpdateChoice::Auto) => Updates::One(file.plan.update),
            _ => updates(self.settings, self.budget().is_some()),
        }
    }

    /// Who may keep the optimizer's state, if ranks share the job: without any, nothing is gained by dividing it.
    pub(super) fn state(&self) -> StateChoice {
        match self.settings.optimizer_state {
            StateChoice::Auto if self.settings.state_bytes(1) == Bytes::ZERO => StateChoice::Whole,
            choice => choice,
        }
    }

    /// Whether its ranks may divide the optimizer's state.
    pub(super) fn shards(&self) -> bool {
        !self.ranks.is_alone() && self.state().may_shard(self.budget().is_some())
    }

    /// Fails, on all ranks alike, unless all train the same: `fingerprint` tells model, data and most settings.
    pub(super) fn agree(&self, fingerprint: &str) -> Result<(), RunError> {
        let Some(reducer) = self.ranks.reducer() else {
            return Ok(());
        };
        let settings = serde_json::to_string(self.settings).unwrap_or_default();
        let options = format!("{settings}{fingerprint}{}", self.snapshot_every);
        let eval = self.eval.map(|data| (data.identity(), data.len()));
        let data = (self.train.identity(), self.train.len(), eval);
        let data = serde_json::to_string(&data).unwrap_or_default();
        for (what, own) in [
            ("the versions of rekindle", env!("CARGO_PKG_VERSION")),
            ("the data", data.as_str()),
            ("the config and its options", options.as_str()),
        ] {
            agree(&reducer, what, own.as_bytes()).map_err(RecordError::from)?;
        }
        Ok(())
    }
}
