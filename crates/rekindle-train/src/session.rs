//! A whole run: build, measure, plan, train, evaluate, record.
//!
//! The device is opened here.

mod measured_step;
mod observer;
mod out_of_memory;
mod planned;
pub(super) mod prepare;
mod recorded;
mod run;
mod run_error;
pub(super) mod subject;
mod terms;

use std::{ops::Range, path::PathBuf};

use rekindle_plan::{
    Bytes, Chain, PlanRequest, Schedule,
    graph::{OperationId, TensorId},
};

pub use self::{
    measured_step::MeasuredStep,
    observer::{MemoryNow, Observer},
    out_of_memory::{OutOfMemory, PlannedAgain, holders},
    planned::Planned,
    run_error::RunError,
    subject::Subject,
};
use crate::{
    data::Dataset,
    device::{DeviceId, DeviceInfo, open},
    model::spec::ModelSpec,
    ranks::Ranks,
    record::{PlainRun, RunRecord},
    run_dir::{RunDir, SnapshotEvery},
    settings::TrainSettings,
    update::{UpdateChoice, Updates},
};
use rekindle::{
    meter::Count,
    record::{PlanElsewhere, Update},
};

/// The default of [`Job::keep_snapshots`].
pub const KEEP_SNAPSHOTS: usize = 2;

/// A training job: model, data and settings.
pub struct Job<'a> {
    /// The name of the run in its record, for example the path of its config.
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
    /// Whether a few plain steps are measured after the training, for comparison.
    pub compare: bool,
    /// Runs a few plain steps in another process, if possible, because they would exceed the budget here. If this is
    /// given, long runs make the comparison by default.
    pub plain_elsewhere: Option<&'a dyn Fn() -> Option<PlainRun>>,
    /// The name of the device.
    pub hardware: &'a str,
    /// Makes plans in another process, if possible: planners take memory, which on the CPU counts towards the budget.
    /// If this is `None` or returns `None`, this process plans.
    pub planner: Option<PlanElsewhere>,
    /// Which bytes the budget bounds.
    pub count: Count,
    /// Whether the first steps are [tracked](crate::tracker): the observer receives the blocks allocated and freed.
    pub track: bool,
    /// Free bytes of the device, if known: a plan that needs more is not run.
    pub free: Option<Bytes>,
    /// Maximum bytes of host memory for offloaded tensors; `None` keeps all tensors on the device. Only for GPUs.
    pub host: Option<Bytes>,
    /// Total bytes of the device, if known.
    pub total: Option<Bytes>,
    /// The device's limit for one buffer, if any: a model with a larger tensor is not run.
    pub largest_buffer: Option<Bytes>,
    /// The folder for the run's record, history and snapshots, if any.
    pub run_dir: Option<RunDir>,
    /// When it takes snapshots.
    pub snapshot_every: SnapshotEvery,
    /// The number of newest snapshots to keep, at least one. The snapshot of the best evaluation is also kept.
    pub keep_snapshots: usize,
    /// A safetensors file of initial weights for a new run, instead of random ones.
    pub weights: Option<PathBuf>,
    /// The ranks that share the job; `settings.batch` is the batch of all ranks together. Budget and memory are those
    /// of this rank; only rank 0 has a folder and weights.
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
            hardware: "",
            planner: None,
            count: Count::default(),
            track: false,
            free: None,
            host: None,
            total: None,
            largest_buffer: None,
            run_dir: None,
            snapshot_every: SnapshotEvery::default(),
            keep_snapshots: KEEP_SNAPSHOTS,
            weights: None,
            ranks: Ranks::default(),
        }
    }

    /// The job on a probed device.
    #[must_use]
    pub fn on(self, device: &'a DeviceInfo) -> Self {
        Self {
            hardware: &device.name,
            free: device.free_bytes,
            total: device.total_bytes,
            largest_buffer: device.largest_buffer_bytes,
            ..self
        }
    }

    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        self.schedule.budget()
    }

    /// This rank's range in the samples of a step.
    #[must_use]
    pub fn part(&self) -> Range<usize> {
        self.ranks.part(self.settings.batch)
    }

    /// Samples that this rank runs at once.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.part().len() / self.settings.accumulate.max(1)
    }

    /// The updates that its plans may use, if the optimizer's state is whole.
    #[must_use]
    pub fn updates(&self) -> Updates {
        match (&self.schedule, self.settings.update) {
            (ScheduleRequest::Given { update, .. }, UpdateChoice::Auto) => Updates::One(*update),
            _ => Updates::of(self.settings, self.budget().is_some()),
        }
    }
}

/// Fails with a reason if a schedule does not belong to a chain.
pub type ChainCheck = Box<dyn Fn(&Chain) -> Result<(), String>>;

/// The source of a run's schedule.
pub enum ScheduleRequest {
    /// A planner finds it on the measured chain.
    Plan(PlanRequest),
    /// A schedule made before.
    Given {
        /// The order of the step.
        order: Order,
        /// The planner that made it.
        planner: String,
        /// The budget that it was made for.
        budget: Option<Bytes>,
        /// When it updates parameters.
        update: Update,
        /// Checks that it belongs to the measured chain.
        check: ChainCheck,
    },
}

/// What a step runs, in which order.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Stages, by a schedule.
    Schedule(Schedule),
    /// Operations of a recorded step.
    Operations {
        /// Their numbers in the recording; higher numbers are the transfers of `offloaded`.
        operations: Vec<OperationId>,
        /// The offloaded tensors.
        offloaded: Vec<TensorId>,
        /// The [recording's](rekindle::record::StagedPlan::recording).
        recording: u64,
    },
}

impl ScheduleRequest {
    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            Self::Given { budget, .. } => *budget,
        }
    }
}

/// Runs a job on a device that was probed before: a GPU that does not work may cause a panic below burn.
///
/// # Errors
///
/// A [`RunError`]. Files of the run's folder that cannot be written during training are not errors: see
/// [`Notice`](crate::run_dir::Notice).
pub fn run(
    job: &Job<'_>,
    device: DeviceId,
    observer: &mut dyn Observer,
) -> Result<RunRecord, RunError> {
    let opened = open(device, job.settings.dtype)?;
    run::Session::prepare(job, device, opened, observer)?.run(observer)
}

/// Measures the step that [`run`] would plan, without training.
///
/// # Errors
///
/// See [`run`].
pub fn measure(
    job: &Job<'_>,
    device: DeviceId,
    observer: &mut dyn Observer,
) -> Result<Subject, RunError> {
    let ranks = &job.ranks;
    let opened = ranks.check(job).map_err(RunError::from);
    let opened = opened.and_then(|()| Ok(open(device, job.settings.dtype)?));
    let opened = ranks.settled(opened)?;
    ranks.settled(Subject::new(job, opened, observer))
}
