//! From a job to a measured, planned chain.

use std::sync::Arc;

use burn::{module::Module, tensor::Device};
use rekindle_plan::{Bytes, Chain, Plan, PlannerKind, Seconds, Source, simulate};

use super::{Job, Observer, Planned, RunError, ScheduleRequest};
use crate::{
    data::{Shuffled, batch::Batch, in_order},
    device::pool_overhead,
    executor::Recheck,
    graph::lone_leaf,
    meter::{Count, Meter},
    model::{
        build::build, cost::ElementBytes, shape::ModelShape, spec::ModelSpec, stage::Stage,
        stages::StagePlan,
    },
    profile::{Measured, Profiler, StageLabel, StoredProfile},
    sequential::Sequential,
    train::{
        settings::Clip,
        tracker::Tracker,
        trainer::{rows, to_device},
    },
};

/// A job's model, its parameters drawn from the job's seed, and the order of its batches.
pub(super) struct Built {
    pub(super) model: Sequential<Stage>,
    pub(super) shape: ModelShape,
    pub(super) batches: Shuffled,
    labels: Vec<StageLabel>,
}

impl Built {
    pub(super) fn new(job: &Job<'_>, device: &Device) -> Result<Self, RunError> {
        let shape = job.model.infer()?;
        let stages = StagePlan::new(job.model, &shape);
        let batches = Shuffled::new(job.train.len(), job.settings.batch, job.settings.seed)?;
        device.seed(job.settings.seed);
        Ok(Self {
            model: Sequential::new(build(job.model, &stages, job.settings.dtype, device)?),
            shape,
            batches,
            labels: labels(job.model, &stages),
        })
    }

    /// A tracker of what comes and goes in the job's steps.
    pub(super) fn tracker(&self, job: &Job<'_>, meter: Arc<dyn Meter>) -> Tracker {
        Tracker::new(
            meter,
            (job.model, &self.shape),
            self.model.layers(),
            job.settings.micro_batch(),
            ElementBytes::flex(job.settings.dtype),
        )
    }

    /// The chain as it is on the run's first batch: found among the job's profiles, or measured now. The model comes
    /// back with the values it had.
    pub(super) fn measure(
        mut self,
        job: &Job<'_>,
        device: &Device,
        meter: &dyn Meter,
        observer: &mut dyn Observer,
    ) -> Result<(Self, Measured), RunError> {
        let key = profile_key(job, meter);
        // Before the profile is there: what it takes itself was counted when it was measured.
        let held = meter.read().in_use_bytes;
        let found = job.profiles.as_ref().and_then(|store| store.find(&key));
        let StoredProfile {
            mut measured,
            kernel_bytes,
        } = match (found, &job.profiles) {
            (Some(profile), Some(store)) => {
                observer.profile_found(&store.folder);
                profile
            }
            (_, store) => {
                let (built, profile) = self.profile(job, device, meter, observer)?;
                self = built;
                if let Some(Err(error)) = store.as_ref().map(|store| store.keep(&key, &profile)) {
                    observer.profile_not_kept(&error);
                }
                profile
            }
        };
        // Parameters, data sets, and what kernels will hold once they have run.
        measured.chain.fixed_bytes += held + kernel_bytes;
        count_settings(job, meter, &mut measured.chain);
        let plan_bytes = plan_bytes(&measured, meter)?;
        measured.chain.fixed_bytes += Bytes(COPIES_OF_A_PLAN * plan_bytes);
        Ok((self, measured))
    }

    fn profile(
        self,
        job: &Job<'_>,
        device: &Device,
        meter: &dyn Meter,
        observer: &mut dyn Observer,
    ) -> Result<(Self, StoredProfile), RunError> {
        let held = meter.read().in_use_bytes;
        let samples = self.batches.step(0);
        let batch = job.train.batch(&samples[..job.settings.micro_batch()]);
        let (input, targets) = to_device(batch, job.settings.dtype, device)?;
        let with_batch = meter.read().in_use_bytes;
        let profiler = Profiler {
            device,
            meter,
            optimizer: job.settings.optimizer,
            clip: job.settings.clip,
        };
        let of = self.labels.len();
        let (mut measured, model) = profiler.chain(
            self.model,
            &self.labels,
            &input,
            |output| {
                let output = rows(output);
                (targets.loss(output.clone()), targets.correct(output))
            },
            |done| observer.profiling(done, of),
        );
        let batch_bytes = with_batch.0.saturating_sub(held.0);
        let target_bytes = batch_bytes.saturating_sub(measured.chain.input_bytes.0);
        measured.chain.fixed_bytes += Bytes(target_bytes);
        drop((input, targets));
        if let Some(batch) = last_evaluated(job) {
            // Fewer samples may be computed in another way, and by another thread with scratch of its own.
            let (input, targets) = to_device(batch, job.settings.dtype, device)?;
            let output = rows(model.valid().forward(input));
            drop((targets.loss(output.clone()), targets.correct(output)));
        }
        // What untracked forwards leave in burn's graph goes with the next backward.
        drop(lone_leaf(device).backward());
        // Whatever else the process holds once it has computed: matrix kernels allocate scratch for each thread in
        // their first run and keep it.
        let kernel_bytes = Bytes(meter.read().in_use_bytes.0.saturating_sub(held.0));
        let profile = StoredProfile {
            measured,
            kernel_bytes,
        };
        Ok((Self { model, ..self }, profile))
    }
}

/// The last batch of an evaluation: what is left for it.
fn last_evaluated(job: &Job<'_>) -> Option<Batch> {
    let data = job.eval?;
    let last = in_order(data.len(), job.settings.micro_batch()).last();
    last.map(|samples| data.batch(&samples))
}

/// Counts in a chain what the job's settings take beside its stages.
fn count_settings(job: &Job<'_>, meter: &dyn Meter, chain: &mut Chain) {
    if job.settings.accumulate > 1 {
        // The sum of the parts before stays while the next part's gradients come.
        chain.fixed_bytes += chain.grad_bytes();
    }
    if job.recheck == Recheck::Values {
        for stage in &mut chain.stages {
            let pass = job
                .recheck
                .temp_bytes(stage.output_bytes, job.settings.dtype);
            let ways = stage.alternatives.iter_mut();
            let temps = ways.map(|way| &mut way.tracked_temp_bytes);
            for temp in temps.chain([&mut stage.forward_temp_bytes, &mut stage.tracked_temp_bytes])
            {
                *temp = pass.max(*temp);
            }
        }
    }
    if bounds_pools(job, meter) {
        chain.fixed_bytes += beside_buffers(job, meter, chain);
        if let Some(Clip::GlobalNorm { .. }) = job.settings.clip {
            // All gradients are scaled before the first is let go of.
            chain.optimizer.temp_bytes += chain.grad_bytes();
        }
    }
}

/// Whether the bytes that count are those that pools reserve.
fn bounds_pools(job: &Job<'_>, meter: &dyn Meter) -> bool {
    job.count == Count::Reserved && meter.read().reserved_bytes.is_some()
}

/// The fixed bytes of a chain that are no live buffers, but count: the driver's context, and what pools add.
pub(super) fn beside_buffers(job: &Job<'_>, meter: &dyn Meter, chain: &Chain) -> Bytes {
    if bounds_pools(job, meter) {
        meter.context_bytes() + pool_overhead(chain)
    } else {
        Bytes::ZERO
    }
}

/// All that a profile depends on.
fn profile_key(job: &Job<'_>, meter: &dyn Meter) -> String {
    let settings = job.settings;
    let key = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "hardware": job.hardware,
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "exact_sizes": meter.exact_sizes(),
        "dtype": settings.dtype,
        "batch": settings.micro_batch(),
        "last_evaluated": job.eval.map(|data| data.len() % settings.micro_batch().max(1)),
        "loss": settings.loss,
        "optimizer": settings.optimizer,
        "clip": settings.clip,
        "model": job.model,
    });
    key.to_string()
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

/// A plan takes memory itself, some hundred bytes for each stage, which on the processor the budget bounds too. What
/// carries it out and what records it are about as large, each.
const COPIES_OF_A_PLAN: u64 = 3;

/// What a plan takes, by the example of the plain one.
fn plan_bytes(measured: &Measured, meter: &dyn Meter) -> Result<u64, RunError> {
    let before = meter.read().in_use_bytes.0;
    let plain = measured.plain()?;
    let chain = measured.under(&plain.schedule);
    let after = meter.read().in_use_bytes.0;
    drop((plain, chain));
    Ok(after.saturating_sub(before))
}

/// Plans as the job asks.
pub(super) fn make_plan(
    job: &Job<'_>,
    measured: &Measured,
    meter: &dyn Meter,
    param_count: u64,
) -> Result<Planned, RunError> {
    let plain = measured.plain()?;
    let budget = job.budget();
    let (plan, planner) = match &job.schedule {
        ScheduleRequest::Plan(request) => {
            let elsewhere = job.planner.and_then(|planner| planner(measured, request));
            let plan = match elsewhere {
                Some(plan) => plan?,
                None => measured.plan(request)?,
            };
            let name = plan.planner.to_string();
            (plan, name)
        }
        ScheduleRequest::Given {
            schedule,
            planner,
            check,
            ..
        } => {
            check(&measured.chain).map_err(RunError::OtherModel)?;
            let plan = measured.costed(Plan {
                planner: PlannerKind::Auto,
                schedule: schedule.clone(),
                peak: Bytes(0),
                step: Seconds(0.0),
                source: Source::Fastest,
            })?;
            (plan, planner.clone())
        }
    };
    if let Some(budget) = budget
        && plan.peak > budget
    {
        return Err(RunError::OverBudget {
            peak: plan.peak,
            budget,
        });
    }
    // A plan is for one part of a batch; the optimizer's step comes once.
    let whole_step = |step: Seconds| {
        let update = measured.chain.optimizer.step_s;
        (step - update) * job.settings.accumulate as f64 + update
    };
    let chain = measured.under(&plan.schedule);
    Ok(Planned {
        peak: plan.peak,
        peak_in_use: seen_in_use(
            meter,
            &chain,
            &plan,
            beside_buffers(job, meter, &measured.chain),
        )?,
        plain_peak: plain.peak,
        plain_step: whole_step(plain.step),
        count: job.count,
        chain,
        plan: Plan {
            step: whole_step(plan.step),
            ..plan
        },
        planner,
        budget,
        param_count,
    })
}

/// Whether pools are trimmed wherever they might grow past the budget.
pub(super) fn keeps_room(job: &Job<'_>, meter: &dyn Meter) -> bool {
    job.budget().is_some() && bounds_pools(job, meter)
}

/// The predicted peak in use as a meter sees it: one that samples between actions misses their temporary bytes, and
/// sees live buffers alone.
fn seen_in_use(
    meter: &dyn Meter,
    chain: &Chain,
    plan: &Plan,
    beside_buffers: Bytes,
) -> Result<Bytes, RunError> {
    if meter.read().reserved_bytes.is_none() {
        return Ok(plan.peak);
    }
    let simulation = simulate(chain, &plan.schedule)?;
    let resident = simulation.moments.iter().map(|moment| moment.resident);
    let seen = resident.max().unwrap_or_default();
    Ok(Bytes(seen.0.saturating_sub(beside_buffers.0)))
}
