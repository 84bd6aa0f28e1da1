//! The recorded step: operations measured while they run, and plans of them.

use std::sync::Arc;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};
use rekindle_plan::{
    Bytes, Chain, OptimizerCost, Parts, PlanError, PlanRequest, PlannerKind, Seconds,
    graph::{GraphPlanError, GraphPlanner, OnDevice},
};

use super::{
    Job, Observer, Order, Planned, RunError, ScheduleRequest, numbers, prepare::Built, terms::Terms,
};
use crate::{
    engine::{RecordedStep, loss_of_part},
    optimizer::AnyOptimizer,
    optimizer_state::{OptimizerState, ShardedBecause, StatePlan, Way},
    settings::OnNonFinite,
    update::{Candidate, InBackwardBecause, Updates},
};
use rekindle::{
    dtype::Dtype,
    meter::Meter,
    profile::{StageLabel, keep_useful, with_reserve},
    record::{
        Offload, RecordError, StagedPlan, StepExchange, StepPlan, StepProfile, Update, Wanted,
        measured_link, record,
    },
};
use rekindle::{reduce::Shards, statistics::Statistics};

/// Budgets between the smallest and the plain run's at which a frontier is planned.
const FRONTIER_BUDGETS: u64 = 12;

/// A snapshot's writer: its buffer of 8 KiB, names, and what the file system's calls take.
const WRITER_BYTES: Bytes = Bytes(32 << 10);

impl Built {
    /// Records the step on the run's first batch and measures its operations: plans come after. The model keeps its
    /// values.
    pub(super) fn record(
        &self,
        job: &Job<'_>,
        device: &Device,
        meter: &Arc<dyn Meter>,
        observer: &mut dyn Observer,
    ) -> Result<RecordedStep, RunError> {
        let settings = job.settings;
        let wanted = match &job.schedule {
            ScheduleRequest::Plan(request) => graph_planner(request)?.into(),
            ScheduleRequest::Given {
                order: Order::Schedule(schedule),
                ..
            } => Wanted::Schedule(schedule.clone()),
            ScheduleRequest::Given {
                order:
                    Order::Operations {
                        operations,
                        offloaded,
                        ..
                    },
                ..
            } => Wanted::Operations {
                operations: operations.clone(),
                offloaded: offloaded.clone(),
            },
        };
        let first = self
            .evaluate_last(job, device)
            .and_then(|()| self.first_part(job, device));
        let batch = job.ranks.settled(first.map_err(RunError::from))?;
        let loss = loss_of_part(settings.accumulate);
        // The places of a step's samples, and the sum of gradients of the parts before, which stays while the next part's
        // come.
        let samples = Bytes((settings.batch * size_of::<usize>()) as u64);
        let accumulated = settings.accumulated_bytes(self.shape.param_count());
        let optimizer = AnyOptimizer::new(settings);
        let recorded = record(&self.model, &batch, loss).and_then(|recorded| {
            let largest = recorded.largest_tensor();
            let link = job.host.map(|bytes| measured_link(device, bytes, largest));
            Ok((recorded, link.transpose()?))
        });
        let (recorded, link) = job.ranks.settled(recorded.map_err(RunError::from))?;
        let recorded = match job.ranks.reducer() {
            Some(reducer) => recorded.with_reducer(reducer),
            None => recorded,
        };
        // A sharded state has those of the whole one.
        let step = match job.updates() {
            Updates::One(Update::After) => recorded.with_optimizer(&optimizer),
            Updates::One(Update::InBackward) => recorded.with_update_in_backward(&optimizer),
            Updates::ToFit | Updates::ToFitOrFaster => recorded.with_either_update(&optimizer),
        };
        let mut step = step
            .with_link(link)
            .with_meter(Arc::clone(meter))
            .with_count(job.count)
            .with_comparison(false)
            .with_held(accumulated + samples + Statistics::of(&self.model).bytes())
            .with_held_between(self.saving_bytes(job, meter))
            .with_planner(job.planner.map(|planners| planners.recorded))
            .measured(job.budget(), job.free, wanted, &mut |done, of| {
                observer.measuring(done, of)
            })?;
        step.set_share(job.part().len() as f64 / settings.batch as f64);
        Ok(step)
    }

    /// The most that a snapshot takes while it is written: a parameter's state, copied to the host, and one more of its
    /// tensors, contiguous. Ranks that may share out the state send it encoded, in a buffer that
    /// doubles as it grows.
    fn saving_bytes(&self, job: &Job<'_>, meter: &Arc<dyn Meter>) -> Bytes {
        struct Largest(usize);
        impl ModuleVisitor for Largest {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0 = self.0.max(param.shape().num_elements());
            }
        }
        let shards = Way::may_shard(job);
        if job.run_dir.is_none() && !shards {
            return Bytes::ZERO;
        }
        let mut largest = Largest(0);
        self.model.visit(&mut largest);
        let numbers = largest.0 as u64;
        let contiguous = Bytes(numbers * Dtype::F32.bytes()) + WRITER_BYTES;
        let on_host = meter.read().reserved_bytes.is_none();
        let copies = if shards { 3 } else { 1 };
        let copied = Bytes(job.settings.state_bytes(numbers).0 * copies);
        contiguous + if on_host { copied } else { Bytes::ZERO }
    }
}

/// Plans as the schedule asks, in this way or the first of the others in which every rank has a plan, and leaves the step with
/// this plan. Ranks do this together where there are others.
pub(super) fn make_plan(
    job: &Job<'_>,
    asked: &ScheduleRequest,
    step: &mut RecordedStep,
    (labels, terms): (&[StageLabel], &Terms),
    shards: Option<&Shards>,
    (mut way, others): (Way, &[Way]),
) -> Result<Planned, RunError> {
    let budget = asked.budget();
    let (wanted, planner) = match asked {
        ScheduleRequest::Plan(request) => {
            let planner = graph_planner(request)?;
            step.set_slots(request.slots);
            (Wanted::Planner(planner), None)
        }
        ScheduleRequest::Given {
            order,
            planner,
            check,
            ..
        } => {
            let staged = step.staged_plan();
            check(&named(staged.chain, &staged.marks, labels)).map_err(RunError::OtherModel)?;
            let wanted = match order {
                Order::Operations { offloaded, .. }
                    if !offloaded.is_empty() && job.host.is_none() =>
                {
                    return Err(RunError::OtherModel(
                        "the plan keeps tensors in host memory: that takes a GPU, and `offload` that is not `never`"
                            .into(),
                    ));
                }
                Order::Schedule(schedule) => Wanted::Schedule(schedule.clone()),
                Order::Operations {
                    operations,
                    offloaded,
                    recording,
                } if *recording == staged.recording => Wanted::Operations {
                    operations: operations.clone(),
                    offloaded: offloaded.clone(),
                },
                Order::Operations { .. } => {
                    return Err(RunError::OtherModel(
                        "the plan was made for another model or batch: its operations are not those of this step"
                            .into(),
                    ));
                }
            };
            (wanted, Some(planner.clone()))
        }
    };
    let mut refused_by = Vec::new();
    let mut others = others.iter();
    let mut least = Bytes::MAX;
    let chosen = loop {
        step.set_shards(shards.filter(|_| way.state == OptimizerState::Sharded));
        let chosen = choose(step, way.updates, budget, &wanted);
        if let Err(RecordError::Infeasible { smallest, .. }) = &chosen {
            least = least.min(*smallest);
        }
        let Some(next) = others.next() else {
            break chosen;
        };
        let short = match &chosen {
            Ok(_) => Ok(None),
            Err(RecordError::Infeasible { smallest, .. }) => Ok(Some(ShardedBecause {
                rank: job.ranks.rank(),
                smallest_bytes: *smallest,
            })),
            Err(_) => Err(()),
        };
        // A rank that fails in another way ends the job.
        if !job.ranks.all(short.is_ok()).map_err(RecordError::from)? {
            break chosen;
        }
        match job.ranks.first(short.unwrap_or_default())? {
            Some(short) => refused_by.push((way.state, short)),
            None => break chosen,
        }
        way = *next;
    };
    // The trainer checks all parts of a batch together; updates in the backward pass are checked on the way.
    let stops = job.settings.on_nonfinite == OnNonFinite::Stop;
    step.set_finite_check(stops && step.update() == Update::InBackward);
    match chosen {
        Ok(in_backward_because) => {
            let refused_by = |state| {
                let refused = refused_by.iter().find(|(one, _)| *one == state);
                refused.map(|(_, short)| *short)
            };
            // Of sharded states, all ranks tried updates after the step first.
            let after = refused_by(OptimizerState::Sharded);
            let after = after.map(|short| InBackwardBecause::Fits(short.smallest_bytes));
            Ok(Planned {
                in_backward_because: in_backward_because.or(after),
                state: shards.map(|shards| {
                    let (sharded_bytes, sharded_s) = step.state_cost(Some(shards));
                    StatePlan {
                        chosen: way.state,
                        because: refused_by(OptimizerState::Whole),
                        whole_bytes: step.state_cost(None).0,
                        sharded_bytes,
                        sharded_s,
                    }
                }),
                ..current(step, labels, terms, planner)
            })
        }
        Err(error) => {
            let error = match error {
                RecordError::Infeasible { budget, .. } => RecordError::Infeasible {
                    budget,
                    smallest: least,
                },
                error => error,
            };
            let any = |planner: GraphPlanner| {
                choose(step, way.updates, Some(Bytes(1)), &planner.into()).err()
            };
            Err(refused(error, asked, any))
        }
    }
}

/// Leaves the step with the best plan that its updates allow; says why that updates in the backward pass where it need
/// not. Fails with the smallest budget that any update works with.
fn choose(
    step: &mut RecordedStep,
    updates: Updates,
    budget: Option<Bytes>,
    wanted: &Wanted,
) -> Result<Option<InBackwardBecause>, RecordError> {
    let chosen = updates.choose(|update| {
        match step.plan_updating(update, budget, wanted.clone()) {
            Ok(()) => {}
            Err(RecordError::Infeasible { smallest, .. }) => return Ok(Err(smallest)),
            Err(error) => return Err(error),
        }
        let plan = step.plan();
        Ok(Ok(Candidate {
            plan: (),
            step: plan.predicted_time + step.optimizer_cost().step_s,
            recomputes: plan.repeated > 0,
        }))
    });
    match chosen? {
        Ok(((), update, because)) => {
            // The other one may have been planned last.
            if step.update() != update {
                step.plan_updating(update, budget, wanted.clone())?;
            }
            Ok(because)
        }
        Err(smallest) => Err(RecordError::Infeasible {
            budget: budget.unwrap_or(Bytes::MAX),
            smallest,
        }),
    }
}

/// The step's present plan; `planner` is its name where it was made before.
pub(super) fn current(
    step: &RecordedStep,
    labels: &[StageLabel],
    terms: &Terms,
    planner: Option<String>,
) -> Planned {
    let mut staged = step.staged_plan();
    staged.chain = named(staged.chain, &staged.marks, labels);
    let optimizer = step.optimizer_cost();
    planned(terms, step.plan(), staged, &optimizer, planner)
}

/// Plans a step that was measured elsewhere; `chain` has its stages' names.
pub(super) fn plan_profile(
    request: &PlanRequest,
    profile: &StepProfile,
    chain: &Chain,
    terms: &Terms,
) -> Result<Planned, RunError> {
    let plan = |budget, planner| profile.plan(budget, planner, request.slots);
    let (plan, mut staged) = plan(request.budget, graph_planner(request)?).map_err(|error| {
        let any = |planner| plan(Some(Bytes(1)), planner).err();
        refused(error, &ScheduleRequest::Plan(*request), any)
    })?;
    for (stage, named) in staged.chain.stages.iter_mut().zip(&chain.stages) {
        stage.name.clone_from(&named.name);
        stage.param_bytes = named.param_bytes;
    }
    Ok(planned(terms, plan, staged, &chain.optimizer, None))
}

/// The useful plans of a planner, with the budgets that they are made for; `plan` makes one.
pub(super) fn frontier(
    request: PlanRequest,
    mut plan: impl FnMut(PlanRequest) -> Result<Planned, RunError>,
) -> Result<Vec<(Bytes, Planned)>, RunError> {
    let mut plan = |budget, planner| {
        plan(PlanRequest {
            budget,
            planner,
            ..request
        })
    };
    let plain = plan(None, PlannerKind::None)?;
    let smallest = match plan(Some(Bytes(1)), request.planner) {
        Err(RunError::Plan(PlanError::Infeasible { smallest, .. })) => smallest,
        Err(error) => return Err(error),
        Ok(planned) => planned.peak,
    };
    let room = with_reserve(plain.peak).0.saturating_sub(smallest.0);
    let mut plans = Vec::new();
    for place in 0..=FRONTIER_BUDGETS {
        let budget = Bytes(smallest.0 + room * place / FRONTIER_BUDGETS);
        // The smallest was found with what another plan took.
        if let Ok(planned) = plan(Some(budget), request.planner) {
            plans.push((budget, planned));
        }
    }
    keep_useful(&mut plans, |(_, plan)| (plan.peak, plan.step));
    Ok(plans)
}

/// Why there is no plan. `any` is how planning for no memory at all fails.
fn refused(
    error: RecordError,
    asked: &ScheduleRequest,
    any: impl FnOnce(GraphPlanner) -> Option<RecordError>,
) -> RunError {
    match (error, asked) {
        (RecordError::Infeasible { budget, smallest }, ScheduleRequest::Plan(request)) => {
            infeasible(request.planner, budget, smallest, any).into()
        }
        (RecordError::Infeasible { budget, smallest }, _) => RunError::OverBudget {
            peak: smallest,
            budget,
        },
        (RecordError::Plan(error), _) => match *error {
            GraphPlanError::Plan(error) => error.into(),
            error => RecordError::from(error).into(),
        },
        (error, _) => error.into(),
    }
}

/// What no plan fits, with the smallest budget that any planner meets.
fn infeasible(
    planner: PlannerKind,
    budget: Bytes,
    smallest: Bytes,
    any: impl FnOnce(GraphPlanner) -> Option<RecordError>,
) -> PlanError {
    let any = match planner {
        PlannerKind::Auto => None,
        _ => any(GraphPlanner::Auto),
    };
    let smallest_of_all = match any {
        Some(RecordError::Infeasible { smallest: any, .. }) => any.min(smallest),
        _ => smallest,
    };
    PlanError::Infeasible {
        planner,
        budget,
        smallest,
        smallest_of_all,
    }
}

/// The planner of graphs that a request means.
fn graph_planner(request: &PlanRequest) -> Result<GraphPlanner, PlanError> {
    let PlanRequest {
        planner, segments, ..
    } = *request;
    Ok(match (planner, segments) {
        (PlannerKind::Uniform, segments) => GraphPlanner::Uniform(segments),
        (PlannerKind::Segments, segments) => GraphPlanner::Segments(segments),
        (planner, Some(_)) => return Err(PlanError::SegmentsUnused { planner }),
        (PlannerKind::None, None) => GraphPlanner::None,
        (PlannerKind::Sqrt, None) => GraphPlanner::Sqrt,
        (PlannerKind::Revolve, None) => GraphPlanner::Revolve,
        (PlannerKind::Optimal, None) => GraphPlanner::Optimal,
        (PlannerKind::Auto, None) => GraphPlanner::Auto,
    })
}

/// A plan with all that is shown of it.
fn planned(
    terms: &Terms,
    plan: StepPlan,
    staged: StagedPlan,
    optimizer: &OptimizerCost,
    planner: Option<String>,
) -> Planned {
    // Parts of a batch share their update, and what ranks send each other after it.
    let exchange = plan.exchange.map(|one| one.taken);
    let sent = exchange.unwrap_or_default().parameters_s;
    let whole_step =
        |seconds: Seconds| (seconds - sent) * terms.micro_batches as f64 + sent + optimizer.step_s;
    let (place, at_peak) = highest(&staged, optimizer);
    let mut actions = staged.actions();
    actions.push(rekindle_plan::Action::Optimize);
    let segments = staged.segments();
    let order = match &staged.schedule {
        Some(schedule) => Order::Schedule(schedule.clone()),
        None => Order::Operations {
            operations: staged.operations.clone(),
            offloaded: staged.offloaded.clone(),
            recording: staged.recording,
        },
    };
    Planned {
        forwards: staged.forwards.clone(),
        segments: segments.map(|segments| numbers(&segments)),
        actions,
        order,
        at_peak: (place, at_peak),
        peak: plan.predicted_peak,
        peak_in_use: plan.predicted_peak - staged.beside_buffers,
        plain_peak: plan.plain_peak,
        plain_step: whole_step(plan.plain_time),
        step: whole_step(plan.predicted_time),
        count: terms.count,
        source: match &staged.schedule {
            Some(_) => "stages".into(),
            None if plan.repeated == 0 && staged.offloaded.is_empty() => {
                "the recorded order".into()
            }
            None => "single operations".into(),
        },
        operations: Some((plan.repeated, plan.operations)),
        offload: plan.offload.map(|offload| {
            let parts = terms.micro_batches as u64;
            Offload {
                to_host_bytes: Bytes(offload.to_host_bytes.0 * parts),
                to_device_bytes: Bytes(offload.to_device_bytes.0 * parts),
                transfer_s: offload.transfer_s * parts as f64,
                on_device: offload.on_device.map(|other| OnDevice {
                    time: other.time.map(whole_step),
                    ..other
                }),
                ..offload
            }
        }),
        exchange: plan.exchange.map(|exchange| StepExchange {
            taken: exchange.taken.repeated(terms.micro_batches),
            ..exchange
        }),
        state: None,
        levers: staged.levers,
        update: match staged.levers {
            Some(_) => Update::InBackward,
            None => Update::After,
        },
        in_backward_because: None,
        planner: planner.unwrap_or_else(|| plan.planner.to_string()),
        chain: staged.chain,
        budget: plan.budget,
        param_count: terms.param_count,
    }
}

/// The place and the parts of the highest moment, the update included.
fn highest(staged: &StagedPlan, optimizer: &OptimizerCost) -> (usize, Parts) {
    let update = Parts {
        temporary: optimizer.temp_bytes,
        ..staged
            .held
            .last()
            .map(|held| held.after)
            .unwrap_or_default()
    };
    let moments = staged.passes().map(|(_, parts)| parts).chain([update]);
    let highest = moments.enumerate().max_by_key(|(place, parts)| {
        // The first of equals.
        (parts.total(), std::cmp::Reverse(*place))
    });
    highest.unwrap_or_default()
}

/// The chain with the names of the model's stages.
pub(super) fn named(mut chain: Chain, marks: &[Option<usize>], labels: &[StageLabel]) -> Chain {
    for (stage, mark) in chain.stages.iter_mut().zip(marks) {
        if let Some(label) = mark.and_then(|mark| labels.get(mark)) {
            stage.name.clone_from(&label.name);
        }
    }
    chain
}
