//! Plans of a recorded step: what is asked of it, and why it is refused.

use rekindle_plan::{Bytes, Chain, PlanError, Planner, Request, graph::GraphPlanError};

use super::{Frontier, Job, MeasuredStep, Planned, RunError, ScheduleRequest, frontier::frontier};
use crate::{engine::Engine, history::PENDING, settings::OnNonFinite};
use rekindle::record::{RecordError, StagedPlan, Update};

/// Memory for a run's folder: its paths and open files, the trace of a step, and waiting lines of two histories.
const RUN_DIR_BYTES: Bytes = Bytes((16 << 10) + 2 * PENDING as u64);

impl Engine {
    /// The measured step without the model: the costs of each stage, and the input for planning.
    #[must_use]
    pub fn measured_step(&self, job: &Job<'_>) -> MeasuredStep {
        let step = &self.step;
        let mut chain = self.staged_plan(job).chain;
        chain.optimizer = step.optimizer_cost();
        // The state is counted in the optimizer's costs.
        chain.fixed_bytes -= chain.optimizer.state_bytes;
        MeasuredStep::recorded(chain, job.settings.accumulate, step.profile())
    }

    /// The step's plan by stages, with the names of the model's stages.
    fn staged_plan(&self, job: &Job<'_>) -> StagedPlan {
        let staged = self.step.staged_plan();
        StagedPlan {
            chain: named(staged.chain, &staged.marks, &job.model.stage_names()),
            ..staged
        }
    }

    /// Plans according to the schedule request, together with other ranks.
    ///
    /// # Errors
    ///
    /// If there is no such plan, or a given one is for another model.
    pub fn plan(&mut self, job: &Job<'_>, asked: &ScheduleRequest) -> Result<Planned, RunError> {
        self.check(job, asked)?;
        let (planner, file) = match asked {
            ScheduleRequest::Plan(request) => (Some(request.planner), None),
            ScheduleRequest::Given(file) => (None, Some(file)),
        };
        let step = &mut self.step;
        // So that the reported budgets also suffice for the same run with a folder.
        let more = match job.run_dir {
            Some(_) => Bytes::ZERO,
            None => RUN_DIR_BYTES,
        };
        step.plan_anew(asked.budget(), asked.wanted()?)
            .map_err(|error| refused(error, planner, more, |any| step.smallest_budget(any)))?;
        let planned = self.planned(job);
        Ok(match file {
            Some(file) => file.named(planned),
            None => planned,
        })
    }

    /// Fails if a schedule that was made before is for another step.
    fn check(&self, job: &Job<'_>, asked: &ScheduleRequest) -> Result<(), RunError> {
        let ScheduleRequest::Given(file) = asked else {
            return Ok(());
        };
        let staged = self.staged_plan(job);
        file.check(&staged.chain)?;
        let recording = staged.order.map_or(0, |order| order.recording);
        let order = file.order_of(recording)?;
        if !order.offloaded.is_empty() && job.host.is_none() {
            return Err(RunError::Refused(
                "the plan keeps tensors in host memory: that takes a GPU, and `offload` that is not `never`".into(),
            ));
        }
        Ok(())
    }

    /// The fastest plan within another budget, during a run: earlier peaks do not count, and joint decisions of ranks
    /// are kept.
    ///
    /// # Errors
    ///
    /// If no plan fits.
    pub(crate) fn plan_again(&mut self, job: &Job<'_>, budget: Bytes) -> Result<Planned, RunError> {
        let auto = Planner::Auto;
        let planned = self.step.plan_again(Some(budget), auto);
        planned.map_err(|error| refused(error, Some(auto), Bytes::ZERO, |_| None))?;
        Ok(self.planned(job))
    }

    /// The step's new plan.
    fn planned(&mut self, job: &Job<'_>) -> Planned {
        // A run checks all parts of a batch together; updates in the backward pass are checked one by one.
        let stops = job.settings.on_nonfinite == OnNonFinite::Stop;
        let in_backward = self.step.update() == Update::InBackward;
        self.step.set_finite_check(stops && in_backward);
        self.current(job)
    }

    /// The plan that the step has now.
    pub(crate) fn current(&self, job: &Job<'_>) -> Planned {
        let (parts, optimizer) = (job.settings.accumulate, self.step.optimizer_cost());
        let (plan, staged) = (self.step.plan(), self.staged_plan(job));
        Planned::new(parts, plan, staged, optimizer)
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
}

/// The chain with the names of the model's stages.
pub(super) fn named(mut chain: Chain, marks: &[Option<usize>], names: &[String]) -> Chain {
    for (stage, mark) in chain.stages.iter_mut().zip(marks) {
        if let Some(name) = mark.and_then(|mark| names.get(mark)) {
            stage.name.clone_from(name);
        }
    }
    chain
}

/// The error of a planner, or of a given plan; the smallest budget is so much more, and `any` that of a planner.
pub(super) fn refused(
    error: RecordError,
    planner: Option<Planner>,
    more: Bytes,
    any: impl FnOnce(Planner) -> Option<Bytes>,
) -> RunError {
    match (error, planner) {
        (
            RecordError::Infeasible {
                budget,
                smallest,
                floor,
            },
            Some(planner),
        ) => {
            let any = match planner {
                Planner::Auto => None,
                _ => any(Planner::Auto),
            };
            RunError::Plan(PlanError::Infeasible {
                planner,
                budget,
                smallest: smallest + more,
                smallest_of_all: any.map_or(smallest, |any| any.min(smallest)) + more,
                floor,
            })
        }
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
