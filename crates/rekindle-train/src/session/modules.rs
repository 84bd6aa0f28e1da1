//! The executor of modules: stages measured one by one, and schedules of them.

use std::sync::Arc;

use burn::tensor::Device;
use rekindle_plan::{Bytes, Chain, Plan, PlanRequest, PlannerKind, Seconds, Source, simulate};
use serde::{Deserialize, Serialize};

use super::{
    Job, Observer, Order, Planned, RunError, ScheduleRequest, prepare::Built, terms::Terms,
};
use crate::profiles::StoredProfile;
use crate::{
    device::pool_overhead,
    engine::{Engine, loss},
    optimizer::AnyOptimizer,
};
use rekindle::statistics::Statistics;
use rekindle::{
    executor::{Executor, Recheck, Room},
    free_dead_nodes,
    meter::{Count, Meter},
    profile::{Measured, Profiler, with_reserve},
};

impl Built {
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
        measured.chain.fixed_bytes += Statistics::of(&self.model).bytes();
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
        let (input, targets, scale) = self.first_part(job, device)?;
        let with_batch = meter.read().in_use_bytes;
        let profiler = Profiler {
            device,
            meter,
            optimizer: &AnyOptimizer::new(job.settings),
        };
        let of = self.labels.len();
        let (mut measured, model) = profiler.chain(
            self.model,
            |stage| self.labels[stage].clone(),
            &input,
            |output| loss(output, &targets, scale.clone(), 1),
            |done| observer.profiling(done, of),
        );
        let batch_bytes = with_batch.0.saturating_sub(held.0);
        let target_bytes = batch_bytes.saturating_sub(measured.chain.input_bytes.0);
        measured.chain.fixed_bytes += Bytes(target_bytes);
        drop((input, targets, scale));
        let built = Self { model, ..self };
        built.evaluate_last(job, device)?;
        // What untracked forwards leave in burn's graph goes with the next backward.
        free_dead_nodes(device);
        // Whatever else the process holds once it has computed: matrix kernels allocate scratch for each thread in
        // their first run and keep it.
        let kernel_bytes = Bytes(meter.read().in_use_bytes.0.saturating_sub(held.0));
        let profile = StoredProfile {
            measured,
            kernel_bytes,
        };
        Ok((built, profile))
    }
}

/// Counts in a chain what the job's settings take beside its stages.
fn count_settings(job: &Job<'_>, meter: &dyn Meter, chain: &mut Chain) {
    // The sum of the parts before stays while the next part's gradients come.
    let trained = chain.grad_bytes().0 / job.settings.dtype.bytes();
    chain.fixed_bytes += job.settings.accumulated_bytes(trained);
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
    }
}

/// Whether the bytes that count are those that pools reserve.
fn bounds_pools(job: &Job<'_>, meter: &dyn Meter) -> bool {
    job.count == Count::Reserved && meter.read().reserved_bytes.is_some()
}

/// The fixed bytes of a chain that are no live buffers, but count: the driver's context, and what pools add.
fn beside_buffers(job: &Job<'_>, meter: &dyn Meter, chain: &Chain) -> Bytes {
    if bounds_pools(job, meter) {
        meter.context_bytes() + pool_overhead(chain)
    } else {
        Bytes::ZERO
    }
}

/// What a device counts besides live buffers, and how its meter reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Beside {
    /// Counted, but no live buffers: the driver's context, and what pools add.
    bytes: Bytes,
    /// Whether peaks in use are samples between actions, as a GPU's are.
    sampled: bool,
}

impl Beside {
    pub(super) fn new(job: &Job<'_>, meter: &dyn Meter, measured: &Measured) -> Self {
        Self {
            bytes: beside_buffers(job, meter, &measured.chain),
            sampled: meter.read().reserved_bytes.is_some(),
        }
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
        "master_weights": settings.master_weights,
        "loss_scale": settings.loss_scale,
        "model": job.model,
    });
    key.to_string()
}

/// A plan takes memory itself, some hundred bytes for each stage, which on the processor the budget bounds too. What
/// carries it out, what records it, and the measurement that is kept for another plan are about as large, each.
const COPIES_OF_A_PLAN: u64 = 4;

/// What a plan takes, by the example of the plain one.
fn plan_bytes(measured: &Measured, meter: &dyn Meter) -> Result<u64, RunError> {
    let before = meter.read().in_use_bytes.0;
    let plain = measured.plain()?;
    let chain = measured.under(&plain.schedule);
    let after = meter.read().in_use_bytes.0;
    drop((plain, chain));
    Ok(after.saturating_sub(before))
}

/// Plans as the schedule asks.
pub(super) fn make_plan(
    job: &Job<'_>,
    asked: &ScheduleRequest,
    measured: &Measured,
    beside: Beside,
    terms: &Terms,
) -> Result<Planned, RunError> {
    let budget = asked.budget();
    let (plan, planner) = match asked {
        ScheduleRequest::Plan(request) => {
            let elsewhere = job
                .planner
                .and_then(|planners| (planners.modules)(measured, request));
            let plan = elsewhere.unwrap_or_else(|| measured.plan(request))?;
            let name = plan.planner.to_string();
            (plan, name)
        }
        ScheduleRequest::Given {
            order: Order::Operations { .. },
            ..
        } => {
            return Err(RunError::OtherModel(
                "the plan is one of a recorded step's operations: it runs with the executor `recorded` alone".into(),
            ));
        }
        ScheduleRequest::Given {
            order: Order::Schedule(schedule),
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
    planned(terms, plan, planner, budget, measured, beside)
}

/// A plan with all that is shown of it.
pub(super) fn planned(
    terms: &Terms,
    plan: Plan,
    planner: String,
    budget: Option<Bytes>,
    measured: &Measured,
    beside: Beside,
) -> Result<Planned, RunError> {
    let plain = measured.plain()?;
    // A plan is for one part of a batch; the optimizer's step comes once.
    let whole_step = |step: Seconds| {
        let update = measured.chain.optimizer.step_s;
        (step - update) * terms.micro_batches as f64 + update
    };
    let chain = measured.under(&plan.schedule);
    Ok(Planned {
        peak_in_use: seen_in_use(beside, &chain, &plan)?,
        step: whole_step(plan.step),
        plain_step: whole_step(plain.step),
        count: terms.count,
        planner,
        param_count: terms.param_count,
        ..Planned::of_chain(chain, plan, &plain, budget)?
    })
}

/// The useful plans of a planner, with the smallest budget that each is made for.
pub(super) fn frontier(
    terms: &Terms,
    measured: &Measured,
    beside: Beside,
    request: PlanRequest,
) -> Result<Vec<(Bytes, Planned)>, RunError> {
    let plans = measured.frontier(request.planner, request.slots)?;
    let planned = plans.into_iter().map(|plan| {
        let name = plan.planner.to_string();
        let planned = planned(terms, plan, name, None, measured, beside)?;
        Ok((with_reserve(planned.peak), planned))
    });
    planned.collect()
}

/// The executor for a plan.
pub(super) fn engine(
    job: &Job<'_>,
    planned: &Planned,
    meter: &Arc<dyn Meter>,
) -> Result<Engine, RunError> {
    let Order::Schedule(schedule) = &planned.order else {
        return Err(RunError::OtherModel(
            "the plan is for the other executor: see `--executor`".into(),
        ));
    };
    let mut executor = Executor::new(schedule.clone())
        .rechecking(job.recheck)
        .with_meter(Arc::clone(meter));
    if let Some(budget) = planned.budget.filter(|_| bounds_pools(job, &**meter)) {
        let for_pools = Bytes(budget.0.saturating_sub(meter.context_bytes().0));
        let chain = planned.chain.clone();
        executor = executor.with_room(Arc::new(Room::new(Arc::clone(meter), for_pools, chain)));
    }
    Ok(Engine::Modules {
        executor,
        chain: planned.chain.clone(),
        beside_buffers: beside_buffers(job, &**meter, &planned.chain),
    })
}

/// The predicted peak in use as a meter sees it: one that samples between actions misses their temporary bytes, and
/// sees live buffers alone.
fn seen_in_use(beside: Beside, chain: &Chain, plan: &Plan) -> Result<Bytes, RunError> {
    if !beside.sampled {
        return Ok(plan.peak);
    }
    let simulation = simulate(chain, &plan.schedule)?;
    let resident = simulation.moments.iter().map(|moment| moment.resident);
    let seen = resident.max().unwrap_or_default();
    Ok(Bytes(seen.0.saturating_sub(beside.bytes.0)))
}
