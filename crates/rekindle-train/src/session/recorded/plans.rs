//! Plans of a recorded step.

use rekindle_plan::{Bytes, PlanError, Planner, graph::GraphPlanError};

use super::{
    super::{Job, Order, Planned, RunError, ScheduleRequest, terms::Terms, way::Way},
    shown::{named, planned},
};
use crate::{
    engine::RecordedStep,
    optimizer_state::{OptimizerState, ShardedBecause, StatePlan},
    settings::OnNonFinite,
    update::{Candidate, InBackwardBecause, Updates},
};
use rekindle::{
    record::{RecordError, Update, Wanted},
    reduce::Shards,
};

impl From<&Order> for Wanted {
    fn from(order: &Order) -> Self {
        Self::Operations {
            operations: order.operations.clone(),
            offloaded: order.offloaded.clone(),
        }
    }
}

/// Plans according to the schedule request, in this way or the first of the others in which every rank has a plan, and
/// sets this plan in the step. If there are several ranks, they do this together.
pub(in super::super) fn make_plan(
    job: &Job<'_>,
    asked: &ScheduleRequest,
    step: &mut RecordedStep,
    (names, terms): (&[String], &Terms),
    shards: Option<&Shards>,
    ways: (Way, &[Way]),
) -> Result<Planned, RunError> {
    let (wanted, planner) = wanted(job, asked, step, names)?;
    let Tried {
        way,
        chosen,
        refused_by,
    } = try_ways(job, asked.budget(), step, shards, ways, &wanted)?;
    // The trainer checks all parts of a batch together; updates in the backward pass are checked one by one.
    let stops = job.settings.on_nonfinite == OnNonFinite::Stop;
    step.set_finite_check(stops && step.update() == Update::InBackward);
    let in_backward_because = chosen.map_err(|error| {
        refused(error, asked, |planner| {
            smallest(|none| choose(step, way.updates, none, &planner.into()))
        })
    })?;
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
        ..current(step, names, terms, planner)
    })
}

/// The program that the schedule requests, and the planner's name if the schedule was made before.
fn wanted(
    job: &Job<'_>,
    asked: &ScheduleRequest,
    step: &mut RecordedStep,
    names: &[String],
) -> Result<(Wanted, Option<String>), RunError> {
    let (order, planner, check) = match asked {
        ScheduleRequest::Plan(request) => {
            return Ok((request.planner.into(), None));
        }
        ScheduleRequest::Given {
            order,
            planner,
            check,
            ..
        } => (order, planner, check),
    };
    let staged = step.staged_plan();
    check(&named(staged.chain, &staged.marks, names)).map_err(RunError::OtherModel)?;
    if !order.offloaded.is_empty() && job.host.is_none() {
        return Err(RunError::OtherModel(
            "the plan keeps tensors in host memory: that takes a GPU, and `offload` that is not `never`".into(),
        ));
    }
    order.check(staged.recording)?;
    Ok((order.into(), Some(planner.clone())))
}

/// The result of planning a step in several ways.
struct Tried {
    /// The last way that was tried.
    way: Way,
    /// Why updates are in the backward pass, if they are; an error contains the smallest budget for which any way
    /// works.
    chosen: Result<Option<InBackwardBecause>, RecordError>,
    /// Earlier ways, each with the rank for which it was too large.
    refused_by: Vec<(OptimizerState, ShardedBecause)>,
}

/// Sets the step's best plan in the first of these ways in which every rank has one.
fn try_ways(
    job: &Job<'_>,
    budget: Option<Bytes>,
    step: &mut RecordedStep,
    shards: Option<&Shards>,
    (mut way, others): (Way, &[Way]),
    wanted: &Wanted,
) -> Result<Tried, RunError> {
    let mut refused_by = Vec::new();
    let mut least = Bytes::MAX;
    let mut others = others.iter();
    let chosen = loop {
        step.set_shards(shards.filter(|_| way.state == OptimizerState::Sharded));
        let chosen = choose(step, way.updates, budget, wanted);
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
    let chosen = chosen.map_err(|error| match error {
        RecordError::Infeasible { budget, .. } => RecordError::Infeasible {
            budget,
            smallest: least,
            floor: None,
        },
        error => error,
    });
    Ok(Tried {
        way,
        chosen,
        refused_by,
    })
}

/// Sets the best plan that the allowed updates give; returns why it updates in the backward pass if that was not
/// required. Fails with the smallest budget for which any update works.
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
            floor: None,
        }),
    }
}

/// The step's current plan; `planner` is its planner's name if it was made before.
pub(in super::super) fn current(
    step: &RecordedStep,
    names: &[String],
    terms: &Terms,
    planner: Option<String>,
) -> Planned {
    let mut staged = step.staged_plan();
    staged.chain = named(staged.chain, &staged.marks, names);
    let optimizer = step.optimizer_cost();
    planned(terms, step.plan(), staged, &optimizer, planner)
}

/// The smallest feasible budget, from the error for a budget of zero bytes.
pub(in super::super) fn smallest_budget(
    plan: impl FnOnce(Bytes) -> Result<Planned, RunError>,
) -> Result<Bytes, RunError> {
    match plan(Bytes::ZERO) {
        Ok(planned) => Ok(planned.peak),
        Err(RunError::Plan(PlanError::Infeasible { smallest, .. })) => Ok(smallest),
        Err(error) => Err(error),
    }
}

/// The error for an infeasible request. `any` is the smallest budget of another planner.
pub(in super::super) fn refused(
    error: RecordError,
    asked: &ScheduleRequest,
    any: impl FnOnce(Planner) -> Option<Bytes>,
) -> RunError {
    match (error, asked) {
        (
            RecordError::Infeasible {
                budget, smallest, ..
            },
            ScheduleRequest::Plan(request),
        ) => infeasible(request.planner, budget, smallest, any).into(),
        (
            RecordError::Infeasible {
                budget, smallest, ..
            },
            _,
        ) => RunError::OverBudget {
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

/// The error for an infeasible budget, with the smallest budget that any planner meets.
pub(in super::super) fn infeasible(
    planner: Planner,
    budget: Bytes,
    smallest: Bytes,
    any: impl FnOnce(Planner) -> Option<Bytes>,
) -> PlanError {
    let any = match planner {
        Planner::Auto => None,
        _ => any(Planner::Auto),
    };
    let smallest_of_all = any.map_or(smallest, |any| any.min(smallest));
    PlanError::Infeasible {
        planner,
        budget,
        smallest,
        smallest_of_all,
    }
}

/// The smallest budget of a planner, from its error for zero bytes.
pub(in super::super) fn smallest<T>(
    plan: impl FnOnce(Option<Bytes>) -> Result<T, RecordError>,
) -> Option<Bytes> {
    match plan(Some(Bytes::ZERO)) {
        Err(RecordError::Infeasible { smallest, .. }) => Some(smallest),
        _ => None,
    }
}
