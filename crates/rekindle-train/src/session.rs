//! A whole run: build, measure, plan, train, evaluate, record.
//!
//! This is where a device is opened.

mod measured_step;
mod modules;
mod out_of_memory;
pub(super) mod prepare;
mod recorded;
mod run;
pub(super) mod subject;
mod terms;

use std::{
    io,
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
};

use rekindle_plan::{
    Action, Bytes, Chain, Parts, Plan, PlanError, PlanRequest, Schedule, Seconds, StageId,
    Violation,
    graph::{Levers, OperationId, TensorId},
    simulate,
};
use thiserror::Error;

use super::{
    ExecutorKind, NonFinite, RunDirError,
    chunks::LossChunksRefused,
    ranks::{Ranks, RanksRefused},
    record::{EvalRecord, MemoryGrowth, PlainRun, RunRecord, StepRecord},
    run_dir::{Notice, RunDir, SnapshotEvery},
    settings::TrainSettings,
    tracker::TrackedMoment,
    train_error::{TrainError, of_another_rank, of_network},
    update::{InBackwardBecause, UpdateChoice, UpdateRefused, Updates},
    weights::WeightsError,
};
pub use measured_step::MeasuredStep;
pub use out_of_memory::{OutOfMemory, PlannedAgain, holders};
pub use subject::Subject;

use crate::profiles::ProfileStore;
use crate::{
    data::{DataError, Dataset, error::Blame},
    device::{DeviceError, DeviceId, DeviceInfo, open},
    model::{build::BuildError, largest::LargestTensor, shape_error::ShapeError, spec::ModelSpec},
    optimizer_state::StatePlan,
};
use rekindle::{
    executor::{Recheck, StepError},
    meter::{Count, PeakMemory},
    profile::Measured,
    record::{Offload, PlanElsewhere, RecordError, StepExchange, Update},
};

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
    /// What runs the steps. The executor of modules alone compares recomputed values and runs plans made elsewhere.
    pub executor: ExecutorKind,
    /// Whether a few plain steps are run and measured after the training, for comparison.
    pub compare: bool,
    /// Runs a few plain steps in another process, where that can be: here they would pass the budget. Where it is given,
    /// runs that are long enough compare themselves without being asked.
    pub plain_elsewhere: Option<&'a dyn Fn() -> Option<PlainRun>>,
    /// What the device is called: profiles of one are not those of another.
    pub hardware: &'a str,
    /// Where profiles are kept, if anywhere.
    pub profiles: Option<ProfileStore>,
    /// Find plans somewhere else, where that can be: planners take memory, which on the processor is the memory that
    /// the budget bounds. `None`, or an answer of `None`, plans here.
    pub planner: Option<Planners>,
    /// Which bytes the budget bounds.
    pub count: Count,
    /// How closely recomputed outputs are compared with the first ones.
    pub recheck: Recheck,
    /// Whether the first steps are [tracked](crate::tracker): the observer gets what came and what went.
    pub track: bool,
    /// Bytes that the device can still give, where that is known: a plan that needs more is not run.
    pub free: Option<Bytes>,
    /// The most bytes of the host's memory in which a plan's tensors may wait: `None` keeps them on the device. For recorded
    /// steps on GPUs.
    pub host: Option<Bytes>,
    /// All bytes of the device, where that is known.
    pub total: Option<Bytes>,
    /// The most that one buffer of the device may take, where that is limited: a model with a larger tensor is not run.
    pub largest_buffer: Option<Bytes>,
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
            executor: ExecutorKind::default(),
            compare: false,
            plain_elsewhere: None,
            hardware: "",
            profiles: None,
            planner: None,
            count: Count::default(),
            recheck: Recheck::default(),
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

    /// The job on a device that was probed.
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

    /// This rank's places among the samples of a step.
    #[must_use]
    pub fn part(&self) -> Range<usize> {
        self.ranks.part(self.settings.batch)
    }

    /// Samples that this rank runs at once.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.part().len() / self.settings.accumulate.max(1)
    }

    /// Which updates its plans may have, where the optimizer's state is whole.
    #[must_use]
    pub fn updates(&self) -> Updates {
        match (&self.schedule, self.settings.update) {
            (ScheduleRequest::Given { update, .. }, UpdateChoice::Auto) => Updates::One(*update),
            _ => Updates::of(self.settings, self.executor, self.budget().is_some()),
        }
    }
}

/// See [`Job::planner`].
#[derive(Debug, Clone, Copy)]
pub struct Planners {
    /// Of measured modules.
    pub modules: fn(&Measured, &PlanRequest) -> Option<Result<Plan, PlanError>>,
    /// Of recorded steps.
    pub recorded: PlanElsewhere,
}

/// Says why a schedule does not belong to a chain, if it does not.
pub type ChainCheck = Box<dyn Fn(&Chain) -> Result<(), String>>;

/// Where a run's schedule comes from.
pub enum ScheduleRequest {
    /// A planner finds it on the measured chain.
    Plan(PlanRequest),
    /// It was made before.
    Given {
        /// The schedule, or the operations of a recorded step.
        order: Order,
        /// Who made it.
        planner: String,
        /// The budget that it was made for.
        budget: Option<Bytes>,
        /// When it updates parameters.
        update: Update,
        /// Whether it belongs to the chain that is measured.
        check: ChainCheck,
    },
}

/// In which order a step runs what.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Stages, by a schedule.
    Schedule(Schedule),
    /// Operations of a recorded step.
    Operations {
        /// Their places in the recording, and behind these the transfers of `offloaded`.
        operations: Vec<OperationId>,
        /// The tensors that go to the host.
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

/// What is known before the first step.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The chain as the plan meets it, fixed bytes included.
    pub chain: Chain,
    /// How often each stage's forward runs; of a recorded step, the most often that one of its operations does.
    pub forwards: Vec<usize>,
    /// First and last stage of each segment; `None` where stages run again in another way.
    pub segments: Option<Vec<[usize; 2]>>,
    /// The step as actions on stages. Of a plan of single operations, a `forward` that comes again recomputes some of
    /// the stage's operations.
    pub actions: Vec<Action>,
    /// What runs.
    pub order: Order,
    /// The moment of the predicted peak: the place of its action, and what the bytes are.
    pub at_peak: (usize, Parts),
    /// Predicted time of a step, all parts of its batch and the update included.
    pub step: Seconds,
    /// How the planner came to it.
    pub source: String,
    /// Operations that run again in a recorded step, and how many there are.
    pub operations: Option<(usize, usize)>,
    /// What goes to the host's memory, where there is a link to it.
    pub offload: Option<Offload>,
    /// What the exchange adds to the step, where ranks share it.
    pub exchange: Option<StepExchange>,
    /// Who keeps the optimizer's state, where ranks share the step.
    pub state: Option<StatePlan>,
    /// Where parameters are updated in the backward pass: what that and recomputing do to the peak, each by itself.
    pub levers: Option<Levers>,
    /// When parameters are updated.
    pub update: Update,
    /// Why in the backward pass, where nobody asked for that.
    pub in_backward_because: Option<InBackwardBecause>,
    /// Its name, as records show it.
    pub planner: String,
    /// The budget, and which bytes it bounds.
    pub budget: Option<Bytes>,
    /// Which bytes peaks count.
    pub count: Count,
    /// The predicted peak of the bytes that count.
    pub peak: Bytes,
    /// The predicted peak in use as a meter sees it: everywhere on the processor, between instructions on a GPU.
    pub peak_in_use: Bytes,
    /// Peak of the same training without recomputing.
    pub plain_peak: Bytes,
    /// Step time of the same training without recomputing.
    pub plain_step: Seconds,
    /// Values that training changes.
    pub param_count: u64,
}

impl Planned {
    /// A plan for a chain that nothing else is known of.
    ///
    /// # Errors
    ///
    /// If the plan was made for another chain.
    pub fn of_chain(
        chain: Chain,
        plan: Plan,
        plain: &Plan,
        budget: Option<Bytes>,
    ) -> Result<Self, Violation> {
        let simulation = simulate(&chain, &plan.schedule)?;
        let segments = plan.schedule.segments();
        Ok(Self {
            forwards: plan.schedule.forward_counts(),
            segments: segments.map(|segments| numbers(&segments)),
            actions: plan.schedule.actions().to_vec(),
            at_peak: (simulation.peak_action, simulation.at_peak),
            peak: plan.peak,
            peak_in_use: plan.peak,
            plain_peak: plain.peak,
            plain_step: plain.step,
            step: plan.step,
            count: Count::default(),
            param_count: 0,
            source: plan.source.to_string(),
            operations: None,
            offload: None,
            exchange: None,
            state: None,
            levers: None,
            update: Update::After,
            in_backward_because: None,
            planner: plan.planner.to_string(),
            order: Order::Schedule(plan.schedule),
            budget,
            chain,
        })
    }

    /// Stages of whose operations burn itself runs some again in their backward (its balanced strategy).
    #[must_use]
    pub fn balanced(&self) -> usize {
        let balanced = |action: &&Action| {
            matches!(
                action,
                Action::ForwardTracked {
                    alternative: 1..,
                    ..
                }
            )
        };
        self.actions.iter().filter(balanced).count()
    }

    /// What waits in host memory, where anything does.
    #[must_use]
    pub fn moves(&self) -> Option<&Offload> {
        self.offload.as_ref().filter(|offload| offload.tensors > 0)
    }

    /// Whether anything runs again.
    #[must_use]
    pub fn recomputes(&self) -> bool {
        self.balanced() > 0 || self.forwards.iter().any(|&count| count > 1)
    }
}

/// First and last stage of each segment.
fn numbers(segments: &[(StageId, StageId)]) -> Vec<[usize; 2]> {
    let segments = segments.iter();
    segments.map(|(first, last)| [first.0, last.0]).collect()
}

/// Memory while a run goes on.
#[derive(Debug, Clone, Copy)]
pub struct MemoryNow {
    /// Bytes in use after the last step.
    pub in_use: Bytes,
    /// Bytes after the last step that a budget counts.
    pub counted: Bytes,
    /// The most of these so far.
    pub counted_peak: Bytes,
    /// The highest peak so far.
    pub peak: PeakMemory,
}

/// Is told what a run does, and may stop it. What it does not care for it need not take; `()` takes nothing.
pub trait Observer {
    /// `done` of `of` stages are measured.
    fn profiling(&mut self, _done: usize, _of: usize) {}
    /// A recorded step's operations run and are measured: `done` of `of` runs are over.
    fn measuring(&mut self, _done: usize, _of: usize) {}
    /// Nothing is measured: the profile was found in this folder.
    fn profile_found(&mut self, _folder: &Path) {}
    /// The profile could not be kept, and will be measured again next time.
    fn profile_not_kept(&mut self, _error: &io::Error) {}
    /// The plan is made; training starts.
    fn planned(&mut self, _planned: &Planned) {}
    /// A step is done. Breaking stops the run in good order.
    fn stepped(&mut self, _step: &StepRecord, _memory: MemoryNow) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// More and more memory is in use, and steps were found to leave some behind.
    fn grows(&mut self, _growth: &MemoryGrowth) {}
    /// A step is done, and what came and went in it was tracked.
    fn tracked(&mut self, _moments: &[TrackedMoment]) {}
    /// A step was abandoned for want of memory, or the next would be: another plan runs it from here on.
    fn planned_again(&mut self, _again: &PlannedAgain<'_>) {}
    /// The loss or a gradient of a step is not finite, and the run goes on.
    fn nonfinite(&mut self, _found: &NonFinite) {}
    /// No snapshot is taken after this step, because `what` is not finite: the one before stays.
    fn snapshot_withheld(&mut self, _step: usize, _what: &str) {}
    /// Something about the run's folder that does not end the run.
    fn notified(&mut self, _notice: &Notice<'_>) {}
    /// An evaluation has seen `done` of `of` samples. Breaking stops the run in good order, without this evaluation.
    fn evaluating(&mut self, _done: usize, _of: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// An evaluation is done.
    fn evaluated(&mut self, _evaluation: &EvalRecord) {}
}

impl Observer for () {}

/// A run that could not be.
#[derive(Debug, Error)]
pub enum RunError {
    /// A layer cannot take its input.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The model cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The step cannot be recorded.
    #[error(transparent)]
    Recorded(#[from] RecordError),
    /// The data cannot fill a batch.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The schedule that was given does not fit the model.
    #[error("the schedule does not fit the model: {0}")]
    Schedule(#[from] Violation),
    /// The schedule that was given was made for another model.
    #[error("{0}")]
    OtherModel(String),
    /// The schedule that was given takes more than the budget it came with.
    #[error(
        "the plan takes {peak} here, more than its budget of {budget}: make it anew for this device"
    )]
    OverBudget {
        /// What it takes on the chain as it was measured now.
        peak: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The plan takes more than the machine can give.
    #[error("the plan takes {peak}, but only {free}{} can be had", of_total(.total))]
    NotEnough {
        /// What it takes.
        peak: Bytes,
        /// What can be had.
        free: Bytes,
        /// All there is, where that is known.
        total: Option<Bytes>,
    },
    /// One tensor is larger than any buffer of the device. No plan changes that.
    #[error(
        "{} takes {}, but one buffer of this device holds {limit} at most", tensor.role, tensor.bytes
    )]
    TensorTooLarge {
        /// The largest tensor.
        tensor: LargestTensor,
        /// The most that a buffer may take.
        limit: Bytes,
    },
    /// Memory ran out in a step, and no smaller plan helps.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// Parameters cannot be updated when the settings say.
    #[error(transparent)]
    Update(#[from] UpdateRefused),
    /// The loss cannot run in chunks.
    #[error(transparent)]
    LossChunks(#[from] LossChunksRefused),
    /// A step could not run.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The loss or a gradient is not finite, and the settings stop there: the state is that before the step.
    #[error(
        "the loss of step {} is {}{}{}. It is batch {batch} of epoch {epoch}; the model, its statistics and the \
         optimizer are what they were before the step", found.step, found.loss, in_stage(found, stage),
         found.scaled()
    )]
    NonFinite {
        /// What was found.
        found: Box<NonFinite>,
        /// The epoch of its batch, from 1.
        epoch: usize,
        /// The batch within its epoch, from 1.
        batch: usize,
        /// The stage of the first gradient that is not finite.
        stage: Option<String>,
    },
    /// A step could not run or cannot be trusted, for a reason that lies in one stage.
    #[error("in `{name}`: {source}")]
    Stage {
        /// The stage's name.
        name: String,
        /// What is wrong.
        source: StepError,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The run's folder cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The weights to start from cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Several ranks cannot share the job.
    #[error(transparent)]
    Ranks(#[from] RanksRefused),
    /// Another rank could not go on, which says why, and all end.
    #[error("another rank could not go on")]
    OtherRank,
}

fn of_total(total: &Option<Bytes>) -> String {
    total.map_or_else(String::new, |total| format!(" of {total}"))
}

fn in_stage(found: &NonFinite, stage: &Option<String>) -> String {
    match (&found.gradient, stage) {
        (Some((_, path)), Some(stage)) => {
            format!(
                ", and the first gradient that is not finite is that of `{path}` in stage `{stage}`"
            )
        }
        _ => String::new(),
    }
}

pub(super) fn other_executor() -> RunError {
    RunError::OtherModel("the plan is for the other executor: see `--executor`".into())
}

impl RunError {
    /// Whether another rank says why.
    pub(crate) fn is_of_another_rank(&self) -> bool {
        match self {
            Self::OtherRank => true,
            Self::Train(error) => error.is_of_another_rank(),
            Self::Recorded(error) => of_another_rank(error),
            _ => false,
        }
    }

    /// Whether ranks can no longer talk to each other.
    pub(crate) fn is_of_network(&self) -> bool {
        match self {
            Self::Train(error) => error.is_of_network(),
            Self::Recorded(error) => of_network(error),
            _ => false,
        }
    }

    /// Whether the system refused a file, rather than a file or a setting being wrong.
    #[must_use]
    pub fn is_refused_file(&self) -> bool {
        let blame = match self {
            Self::Data(error) => error.blame(),
            Self::RunDir(error) => error.blame(),
            Self::Weights(WeightsError::Refused { .. }) => Blame::System,
            _ => Blame::Content,
        };
        blame == Blame::System
    }
}

/// Runs a job on a device that is known to answer: asking for a GPU that does not may panic below burn.
///
/// # Errors
///
/// A [`RunError`]. What a run cannot write of its folder once it trains is no error: see [`Notice`].
pub fn run(
    job: &Job<'_>,
    device: DeviceId,
    observer: &mut dyn Observer,
) -> Result<RunRecord, RunError> {
    let opened = open(device, job.settings.dtype)?;
    run::Session::prepare(job, device, opened, observer)?.run(observer)
}

/// What [`run`] would plan, measured or found among the job's profiles. Trains nothing.
///
/// # Errors
///
/// As [`run`].
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
