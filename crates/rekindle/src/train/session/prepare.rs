//! From a job to a measured, planned chain.

use burn::tensor::backend::Backend;
use rekindle_plan::{Bytes, Chain, Plan, PlannerKind, Source, plan, planner, simulate};

use super::{Job, Observer, Planned, RunError, ScheduleRequest};
use crate::{
    backend::CheckpointBackend,
    data::Shuffled,
    meter::Meter,
    model::{build::build, shape::ModelShape, spec::ModelSpec, stage::Stage, stages::StagePlan},
    profile::{Profiler, StageLabel},
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
    ) -> Result<Chain, RunError> {
        // Parameters, data sets, whatever the process holds.
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
        let mut chain = profiler.chain(
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
        let targets = Bytes(batch.0.saturating_sub(chain.input_bytes.0));
        chain.fixed_bytes = chain.fixed_bytes + held + targets;
        Ok(chain)
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

/// Plans as the job asks.
pub(super) fn make_plan(
    job: &Job<'_>,
    chain: Chain,
    param_count: u64,
) -> Result<Planned, RunError> {
    let plain = simulate(&chain, &planner::none(chain.stages.len())?)?;
    let (plan, planner, budget) = match &job.schedule {
        ScheduleRequest::Plan(request) => {
            let plan = plan(&chain, request)?;
            let name = plan.planner.to_string();
            (plan, name, request.budget)
        }
        ScheduleRequest::Given {
            schedule,
            planner,
            budget,
            check,
        } => {
            check(&chain).map_err(RunError::OtherModel)?;
            let simulated = simulate(&chain, schedule)?;
            if let Some(budget) = *budget
                && simulated.peak > budget
            {
                return Err(RunError::OverBudget {
                    peak: simulated.peak,
                    budget,
                });
            }
            let plan = Plan {
                planner: PlannerKind::Auto,
                schedule: schedule.clone(),
                peak: simulated.peak,
                step: simulated.time,
                source: Source::Fastest,
            };
            (plan, planner.clone(), *budget)
        }
    };
    Ok(Planned {
        chain,
        plan,
        planner,
        budget,
        plain_peak: plain.peak,
        plain_step: plain.time,
        param_count,
    })
}
