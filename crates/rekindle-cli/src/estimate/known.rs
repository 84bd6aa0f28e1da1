//! A step that is known by its shapes alone.

use rekindle::record::{self, Kernels};
use rekindle_plan::{Bytes, PlanRequest, Schedule};
use rekindle_train::{
    Estimated,
    session::{MeasuredStep, Planned, RunError},
};

use crate::{config::Config, failure::Failure};

/// What is to be estimated beside the plain run.
pub enum Wanted {
    /// Nothing.
    Plain,
    /// What a planner finds.
    Plan(PlanRequest),
    /// A plan that was made before, by the planner of this name.
    Made(Schedule, String),
}

impl Wanted {
    /// The budget that was asked for.
    pub(super) fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            _ => None,
        }
    }
}

/// A step by its shapes.
pub(super) struct Known<'a> {
    pub(super) estimated: Estimated<'a>,
    pub(super) estimate: record::Estimate,
    pub(super) step: MeasuredStep,
    /// The sum of gradients that stays while a batch is run in parts.
    pub(super) summed_bytes: Bytes,
}

impl<'a> Known<'a> {
    pub(super) fn new(config: &'a Config, kernels: Kernels) -> Result<Self, Failure> {
        let estimated = config.estimated(&config.training, kernels);
        let estimate = estimated.estimate()?;
        Ok(Self {
            step: estimated.step_of(&estimate)?,
            summed_bytes: config.training.accumulated_bytes(estimate.trainable),
            estimate,
            estimated,
        })
    }

    /// What is wanted, or why it cannot be had.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Result<Planned, RunError>> {
        match wanted {
            Wanted::Plain => None,
            Wanted::Plan(request) => Some(self.step.plan(request)),
            Wanted::Made(schedule, planner) => {
                Some(self.step.plan_schedule(schedule.clone(), planner.clone()))
            }
        }
    }
}
