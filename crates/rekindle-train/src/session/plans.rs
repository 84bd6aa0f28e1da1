//! Plans of a recorded step.

use rekindle_plan::{Bytes, Planner};

use super::{
    Frontier, Job, MeasuredStep, PlanFile, Planned, RunError, ScheduleRequest, frontier::frontier,
    measured_step::named,
};
use crate::{engine::Engine, history::PENDING, run_error::refused, settings::OnNonFinite};
use rekindle::record::{
    Update,
    driver::{Order, StagedPlan, Wanted},
};

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
        MeasuredStep::recorded(chain, job.settings.parts(), step.profile())
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
        let (planner, wanted): (_, Wanted) = match asked {
            ScheduleRequest::Plan(request) => (Some(request.planner), request.into()),
            ScheduleRequest::Given(file) => (None, self.order_of(job, file)?.into()),
        };
        let step = &mut self.step;
        // So that the reported budgets also suffice for the same run with a folder.
        let more = match job.run_dir {
            Some(_) => Bytes::ZERO,
            None => RUN_DIR_BYTES,
        };
        step.plan_anew(asked.budget(), wanted)
            .map_err(|error| refused(error, planner, more, || step.smallest_budget()))?;
        let planned = self.planned(job);
        Ok(match asked {
            ScheduleRequest::Plan(_) => planned,
            ScheduleRequest::Given(file) => file.named(planned),
        })
    }

    /// What a plan that was made before runs, if it is for this step.
    fn order_of<'a>(&self, job: &Job<'_>, file: &'a PlanFile) -> Result<&'a Order, RunError> {
        let order = file.order_of(self.step.fingerprint())?;
        let moves = !order.offloaded.is_empty() || file.plan.state_on_host().is_some();
        match !moves || job.host.is_some() {
            true => Ok(order),
            false => Err(RunError::Refused(
                "the plan keeps tensors or optimizer state in host memory: that takes a GPU, and `offload` that is not `never`".into(),
            )),
        }
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
        planned.map_err(|error| refused(error, Some(auto), Bytes::ZERO, || None))?;
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
        let (parts, optimizer) = (job.settings.parts(), self.step.optimizer_cost());
        let (plan, staged) = (self.step.plan(), self.staged_plan(job));
        Planned::new(parts, plan, staged, optimizer)
    }

    /// The memory/time frontier of a planner.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn frontier(&mut self, job: &Job<'_>, planner: Planner) -> Result<Frontier, RunError> {
        frontier(planner, |request| {
            self.plan(job, &ScheduleRequest::Plan(request))
        })
    }
}
