//! A measured training step that can be planned.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use burn::tensor::Device;
use rekindle_plan::{Bytes, PlanError, Request};

use super::{
    Frontier, Job, MeasuredStep, Observer, Planned, RunError, ScheduleRequest, frontier::frontier,
    prepare::Built, recorded, terms::Terms, way::Way,
};
use crate::{
    device::OpenDevice,
    engine::{Engine, RecordedStep},
    history::PENDING,
    optimizer_state::OptimizerState,
};
use rekindle::{meter::Meter, reduce::Shards};

/// A measured training step that can be planned any number of times.
pub struct Subject {
    meter: Arc<dyn Meter>,
    param_count: u64,
    step: Rc<RefCell<RecordedStep>>,
    /// The peak before the step was measured without its budget, which was exceeded by then.
    beyond: Option<Bytes>,
    /// Names of the model's stages.
    stages: Vec<String>,
    /// The assignment of parameters to ranks, if ranks could divide the optimizer's state.
    shards: Option<Shards>,
    /// The model, if nothing else holds it: its parameters are in use in every plan.
    _held: Option<Built>,
}

impl Subject {
    pub(super) fn new(
        job: &Job<'_>,
        OpenDevice { device, meter }: OpenDevice,
        observer: &mut dyn Observer,
    ) -> Result<Self, RunError> {
        let built = Built::new(job, &device)?;
        let subject = Self::of(job, &built, &device, &meter, observer)?;
        Ok(Self {
            _held: Some(built),
            ..subject
        })
    }

    /// Records and measures the step of a model, which keeps its values.
    pub(crate) fn of(
        job: &Job<'_>,
        built: &Built,
        device: &Device,
        meter: &Arc<dyn Meter>,
        observer: &mut dyn Observer,
    ) -> Result<Self, RunError> {
        let (step, beyond) = built.record(job, device, meter, observer)?;
        Ok(Self {
            meter: Arc::clone(meter),
            param_count: built.shape.param_count(),
            step: Rc::new(RefCell::new(step)),
            beyond,
            stages: built.stages.clone(),
            shards: job.ranks.shards(&built.model),
            _held: None,
        })
    }

    /// The measured step without the model: the costs of each stage, and the input for planning.
    #[must_use]
    pub fn measured_step(&self, job: &Job<'_>) -> MeasuredStep {
        let step = self.step.borrow();
        let staged = step.staged_plan();
        let mut chain = recorded::named(staged.chain, &staged.marks, &self.stages);
        chain.optimizer = step.optimizer_cost();
        // The state is counted in the optimizer's costs.
        chain.fixed_bytes -= chain.optimizer.state_bytes;
        MeasuredStep::recorded(chain, self.terms(job), step.profile())
    }

    fn terms(&self, job: &Job<'_>) -> Terms {
        Terms {
            micro_batches: job.settings.accumulate,
            count: job.count,
            param_count: self.param_count,
        }
    }

    /// Plans according to the schedule request.
    ///
    /// # Errors
    ///
    /// If there is no such plan, or a given one is for another model.
    pub fn plan(&mut self, job: &Job<'_>, asked: &ScheduleRequest) -> Result<Planned, RunError> {
        let (first, others) = Way::all(job);
        let raised = raised(asked, self.until_now());
        let planned = self.plan_now(job, raised.as_ref().unwrap_or(asked), (first, &others));
        let planned = with_until_now(planned, asked, self.until_now());
        planned.map_err(|error| match &job.run_dir {
            // So that the reported budgets also suffice for the same run with a folder.
            None => with_smallest(error, asked.budget(), |smallest| smallest + RUN_DIR_BYTES),
            Some(_) => error,
        })
    }

    /// The process's peak until now that counts: a run within a larger budget is measured within it.
    fn until_now(&self) -> Bytes {
        self.beyond
            .unwrap_or_else(|| recorded::peak_until_now(&*self.meter))
    }

    /// The fastest plan within another budget, during a run: earlier peaks do not count, and joint decisions of ranks
    /// are kept.
    ///
    /// # Errors
    ///
    /// If no plan fits.
    pub(crate) fn plan_again(
        &mut self,
        job: &Job<'_>,
        (before, budget): (&Planned, Bytes),
    ) -> Result<Planned, RunError> {
        let way = Way::again(before, job);
        let within = ScheduleRequest::Plan(Request::within(budget));
        self.plan_now(job, &within, (way, &[]))
    }

    /// Keeps all tensors on the device from the next plan on.
    pub(crate) fn forbid_offload(&self) {
        self.step.borrow_mut().set_link(None);
    }

    /// The assignment of parameters to ranks, if ranks divide the optimizer's state in this plan.
    pub(crate) fn shards(&self, planned: &Planned) -> Option<Shards> {
        let sharded = planned.state.map(|state| state.chosen) == Some(OptimizerState::Sharded);
        self.shards.clone().filter(|_| sharded)
    }

    /// The plan that the step has made itself.
    pub(crate) fn planned_by_step(&self, job: &Job<'_>) -> Planned {
        recorded::current(&self.step.borrow(), &self.stages, &self.terms(job), None)
    }

    fn plan_now(
        &mut self,
        job: &Job<'_>,
        asked: &ScheduleRequest,
        ways: (Way, &[Way]),
    ) -> Result<Planned, RunError> {
        recorded::make_plan(
            job,
            asked,
            &mut self.step.borrow_mut(),
            (&self.stages, &self.terms(job)),
            self.shards.as_ref(),
            ways,
        )
    }

    /// The memory/time frontier of a planner.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn frontier(&mut self, job: &Job<'_>, request: Request) -> Result<Frontier, RunError> {
        frontier(request, |request| {
            self.plan(job, &ScheduleRequest::Plan(request))
        })
    }

    /// The engine for the latest plan.
    pub(crate) fn engine(&self, planned: &Planned) -> Engine {
        Engine::new(Rc::clone(&self.step), &planned.chain)
    }
}

/// Memory for a run's folder: its paths and open files, the trace of a step, and waiting lines of two histories.
const RUN_DIR_BYTES: Bytes = Bytes((16 << 10) + 2 * PENDING as u64);

/// The same error for the budget that was asked for, with changed smallest budgets.
fn with_smallest(
    error: RunError,
    asked: Option<Bytes>,
    change: impl Fn(Bytes) -> Bytes,
) -> RunError {
    match error {
        RunError::Plan(PlanError::Infeasible {
            planner,
            budget,
            smallest,
            smallest_of_all,
        }) => RunError::Plan(PlanError::Infeasible {
            planner,
            budget: asked.unwrap_or(budget),
            smallest: change(smallest),
            smallest_of_all: change(smallest_of_all),
        }),
        other => other,
    }
}

/// The request with a budget of `least`, if it has a smaller one: that is refused anyway, and a plan for it takes long.
fn raised(asked: &ScheduleRequest, least: Bytes) -> Option<ScheduleRequest> {
    match asked {
        ScheduleRequest::Plan(request) if request.budget.is_some_and(|asked| asked < least) => {
            Some(ScheduleRequest::Plan(Request {
                budget: Some(least),
                ..*request
            }))
        }
        _ => None,
    }
}

/// Raises a plan's peak to at least the process's peak until now.
fn with_until_now(
    planned: Result<Planned, RunError>,
    asked: &ScheduleRequest,
    until_now: Bytes,
) -> Result<Planned, RunError> {
    // Another run's may be a few bytes more.
    let workable = until_now + Bytes(until_now.0 / 256);
    let planned = planned
        .map_err(|error| with_smallest(error, asked.budget(), |smallest| smallest.max(workable)))
        .map(|planned| Planned {
            peak: planned.peak.max(until_now),
            peak_in_use: planned.peak_in_use.max(until_now),
            plain_peak: planned.plain_peak.max(until_now),
            ..planned
        })?;
    match (asked.budget(), asked) {
        (Some(budget), ScheduleRequest::Plan(request)) if until_now > budget => {
            Err(RunError::Plan(PlanError::Infeasible {
                planner: request.planner,
                budget,
                smallest: workable,
                smallest_of_all: workable,
            }))
        }
        (Some(budget), ScheduleRequest::Given { .. }) if until_now > budget => {
            Err(RunError::OverBudget {
                peak: until_now,
                budget,
            })
        }
        _ => Ok(planned),
    }
}
