//! The recorded step: operations measured while they run, and plans of them.

use std::sync::Arc;

use burn::tensor::Device;
use rekindle_plan::{
    Bytes, OptimizerCost, Parts, PlanError, PlanRequest, PlannerKind, Seconds,
    graph::{GraphPlanError, GraphPlanner},
};

use super::{Job, Observer, Order, Planned, RunError, ScheduleRequest, numbers, prepare::Built};
use crate::{
    meter::Meter,
    profile::StageLabel,
    record::{RecordError, StagedPlan, Wanted, record},
    train::{
        engine::{RecordedStep, loss_of_part},
        optimizer::AnyOptimizer,
        statistics::Statistics,
    },
};

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
                order: Order::Operations { operations, .. },
                ..
            } => Wanted::Operations(operations.clone()),
        };
        self.evaluate_last(job, device)?;
        let batch = self.first_part(job, device)?;
        let loss = loss_of_part(settings.accumulate);
        // The places of a step's samples, and the sum of gradients of the parts before, which stays while the next part's
        // come.
        let samples = Bytes((settings.batch * size_of::<usize>()) as u64);
        let accumulated = match settings.accumulate {
            1 => Bytes::ZERO,
            _ => Bytes(self.shape.param_count() * settings.dtype.bytes()),
        };
        let optimizer = AnyOptimizer::new(settings.optimizer, settings.clip);
        let step = record(&self.model, &batch, loss)?
            .with_optimizer(&optimizer)
            .with_meter(Arc::clone(meter))
            .with_count(job.count)
            .with_comparison(false)
            // The trainer checks all parts of a batch together.
            .with_finite_check(false)
            .with_held(accumulated + samples + Statistics::of(&self.model).bytes())
            .with_planner(job.planner.map(|planners| planners.recorded))
            .measured(job.budget().or(job.free), wanted, &mut |done, of| {
                observer.measuring(done, of)
            })?;
        Ok(step)
    }
}

/// Plans as the schedule asks, and leaves the step with this plan.
pub(super) fn make_plan(
    job: &Job<'_>,
    asked: &ScheduleRequest,
    step: &mut RecordedStep,
    labels: &[StageLabel],
    param_count: u64,
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
                Order::Schedule(schedule) => Wanted::Schedule(schedule.clone()),
                Order::Operations {
                    operations,
                    recording,
                } if *recording == staged.recording => Wanted::Operations(operations.clone()),
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
    if let Err(error) = step.plan_again(budget, wanted) {
        return Err(match (error, asked) {
            (RecordError::Infeasible { budget, smallest }, ScheduleRequest::Plan(request)) => {
                infeasible(step, request.planner, budget, smallest).into()
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
        });
    }
    Ok(planned(job, step, budget, planner, labels, param_count))
}

/// What no plan fits, with the smallest budget that any planner meets.
fn infeasible(
    step: &mut RecordedStep,
    planner: PlannerKind,
    budget: Bytes,
    smallest: Bytes,
) -> PlanError {
    let any = match planner {
        PlannerKind::Auto => None,
        _ => step.plan_again(Some(Bytes(1)), GraphPlanner::Auto).err(),
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

/// The step's plan with all that is shown of it.
pub(super) fn planned(
    job: &Job<'_>,
    step: &RecordedStep,
    budget: Option<Bytes>,
    planner: Option<String>,
    labels: &[StageLabel],
    param_count: u64,
) -> Planned {
    let plan = step.plan();
    let staged = step.staged_plan();
    let optimizer = step.optimizer_cost();
    let parts = job.settings.accumulate as f64;
    let whole_step = |seconds: Seconds| seconds * parts + optimizer.step_s;
    let (place, at_peak) = highest(&staged, &optimizer);
    let mut actions = staged.actions();
    actions.push(rekindle_plan::Action::Optimize);
    let segments = staged.segments();
    let order = match &staged.schedule {
        Some(schedule) => Order::Schedule(schedule.clone()),
        None => Order::Operations {
            operations: staged.operations.clone(),
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
        count: job.count,
        source: match &staged.schedule {
            Some(_) => "stages".into(),
            None => "single operations".into(),
        },
        operations: Some((plan.repeated, plan.operations)),
        planner: planner.unwrap_or_else(|| plan.planner.to_string()),
        chain: named(staged.chain, &staged.marks, labels),
        budget,
        param_count,
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
    let moments = staged.held.iter().map(|held| held.at_peak).chain([update]);
    let highest = moments.enumerate().max_by_key(|(place, parts)| {
        // The first of equals.
        (parts.total(), std::cmp::Reverse(*place))
    });
    highest.unwrap_or_default()
}

/// The chain with the names of the model's stages.
pub(super) fn named(
    mut chain: rekindle_plan::Chain,
    marks: &[Option<usize>],
    labels: &[StageLabel],
) -> rekindle_plan::Chain {
    for (stage, mark) in chain.stages.iter_mut().zip(marks) {
        if let Some(label) = mark.and_then(|mark| labels.get(mark)) {
            stage.name.clone_from(&label.name);
        }
    }
    chain
}
