//! From a job to a measured, planned chain.

use burn::tensor::backend::Backend;
use rekindle_plan::{
    Bytes, Plan, PlanError, PlanRequest, PlannerKind, Seconds, Source, plan, planner, simulate,
};

use super::{Job, Observer, Planned, RunError, ScheduleRequest};
use crate::{
    backend::CheckpointBackend,
    data::Shuffled,
    meter::Meter,
    model::{build::build, shape::ModelShape, spec::ModelSpec, stage::Stage, stages::StagePlan},
    profile::{Measured, Profiler, StageLabel},
    sequential::Sequential,
    train::trainer::{rows, to_device},
};

/// A job's model, its parameters drawn from the job's seed, and the order of its batches.
pub(super) struct Built<B: Backend> {
    pub(super) model: Sequential<Stage<B>>,
    pub(super) shape: ModelShape,
    pub(super) batches: Shuffled,
    labels: Vec<StageLabel>,
}

impl<B: CheckpointBackend> Built<B> {
    pub(super) fn new(job: &Job<'_>, device: &B::Device) -> Result<Self, RunError> {
        let shape = job.model.infer()?;
        let stages = StagePlan::new(job.model, &shape);
        let batches = Shuffled::new(job.train.len(), job.settings.batch, job.settings.seed)?;
        B::seed(device, job.settings.seed);
        Ok(Self {
            model: Sequential::new(build::<B>(job.model, &stages, device)?),
            shape,
            batches,
            labels: labels(job.model, &stages),
        })
    }

    /// Measures the chain on the run's first batch.
    pub(super) fn measure(
        &self,
        job: &Job<'_>,
        device: &B::Device,
        meter: &dyn Meter,
        observer: &mut dyn Observer,
    ) -> Result<Measured, RunError> {
        let held = meter.read().in_use_bytes;
        let batch = job.train.batch(&self.batches.step(0));
        let (input, targets) = to_device::<B>(batch, device)?;
        let with_batch = meter.read().in_use_bytes;
        let profiler = Profiler::<B> {
            device,
            meter,
            optimizer: job.settings.optimizer,
            clip: job.settings.clip,
        };
        let of = self.labels.len();
        let mut measured = profiler.chain(
            &self.model,
            &self.labels,
            &input,
            |output| {
                let output = rows(output);
                (targets.loss(output.clone()), targets.correct(output))
            },
            |done| observer.profiling(done, of),
        );
        let batch = Bytes(with_batch.0.saturating_sub(held.0));
        let batch_targets = Bytes(batch.0.saturating_sub(measured.chain.input_bytes.0));
        drop((input, targets));
        // Parameters, data sets, and whatever else the process holds once it has computed: matrix kernels allocate
        // scratch for each thread in their first run and keep it.
        let held = held.max(meter.read().in_use_bytes);
        let chain = &mut measured.chain;
        chain.fixed_bytes = chain.fixed_bytes + held + batch_targets;
        Ok(measured)
    }
}

/// Names for people, and keys that are equal where stages cost the same.
fn labels(model: &ModelSpec, stages: &StagePlan) -> Vec<StageLabel> {
    stages
        .stages
        .iter()
        .enumerate()
        .map(|(index, stage)| StageLabel {
            name: stage.name.clone(),
            // The first stage computes no gradient for its input.
            key: format!(
                "{:?} {:?} {}",
                &model.layers[stage.layers.clone()],
                stage.input,
                index == 0
            ),
        })
        .collect()
}

/// Share of a budget that planners do not get: what a step takes varies a little from run to run, by the scratch of
/// kernels whose threads happen to be busy together, and the budget must hold all the same. Seen: up to 1.2%.
const RESERVE: f64 = 0.03;

fn without_reserve(budget: Bytes) -> Bytes {
    Bytes((budget.0 as f64 * (1.0 - RESERVE)) as u64)
}

/// The smallest budget that leaves `bytes` without its reserve.
fn with_reserve(bytes: Bytes) -> Bytes {
    Bytes((bytes.0 as f64 / (1.0 - RESERVE)).ceil() as u64 + 1)
}

/// Plans as the job asks.
///
/// Planners see the chain, in which every stage's output counts; what they find is then costed as it will run.
pub(super) fn make_plan(
    job: &Job<'_>,
    measured: Measured,
    param_count: u64,
) -> Result<Planned, RunError> {
    let chain = &measured.chain;
    let none = planner::none(chain.stages.len())?;
    let plain = simulate(&measured.under(&none), &none)?;
    let (mut plan, planner, budget) = match &job.schedule {
        ScheduleRequest::Plan(request) => {
            let budget = request.budget;
            let mut request = PlanRequest {
                budget: budget.map(without_reserve),
                ..*request
            };
            // Where the plain run fits as it will run, no planner need be asked.
            if request.planner == PlannerKind::Auto
                && request.budget.is_none_or(|budget| plain.peak <= budget)
            {
                request = PlanRequest {
                    planner: PlannerKind::None,
                    budget: None,
                    ..request
                };
            }
            let plan = plan(chain, &request).map_err(|error| match (error, budget) {
                (
                    PlanError::Infeasible {
                        planner,
                        smallest,
                        smallest_of_all,
                        ..
                    },
                    Some(budget),
                ) => PlanError::Infeasible {
                    planner,
                    budget,
                    smallest: with_reserve(smallest),
                    smallest_of_all: with_reserve(smallest_of_all),
                },
                (error, _) => error,
            })?;
            let name = plan.planner.to_string();
            (plan, name, budget_of(&job.schedule))
        }
        ScheduleRequest::Given {
            schedule,
            planner,
            check,
            ..
        } => {
            check(chain).map_err(RunError::OtherModel)?;
            let plan = Plan {
                planner: PlannerKind::Auto,
                schedule: schedule.clone(),
                peak: Bytes(0),
                step: Seconds(0.0),
                source: Source::Fastest,
            };
            (plan, planner.clone(), budget_of(&job.schedule))
        }
    };
    let costed = simulate(&measured.under(&plan.schedule), &plan.schedule)?;
    (plan.peak, plan.step) = (costed.peak, costed.time);
    if let Some(budget) = budget
        && plan.peak > budget
    {
        return Err(RunError::OverBudget {
            peak: plan.peak,
            budget,
        });
    }
    Ok(Planned {
        chain: measured.chain,
        plan,
        planner,
        budget,
        plain_peak: plain.peak,
        plain_step: plain.time,
        param_count,
    })
}

fn budget_of(request: &ScheduleRequest) -> Option<Bytes> {
    match request {
        ScheduleRequest::Plan(request) => request.budget,
        ScheduleRequest::Given { budget, .. } => *budget,
    }
}
