//! A step that is known by its shapes alone.

use rekindle::record;
use rekindle_plan::{Bytes, PlanError, Request};

use crate::{
    Estimated,
    session::{MeasuredStep, Planned, RunError},
};

/// A step by its shapes.
pub struct Known<'a> {
    /// What is estimated.
    pub estimated: Estimated<'a>,
    /// The estimate.
    pub estimate: record::Estimate,
    /// The same, to be planned.
    pub step: MeasuredStep,
    /// The sum of gradients that stays while a batch is run in parts.
    pub summed_bytes: Bytes,
}

impl<'a> Known<'a> {
    /// Records the step by its shapes; nothing runs.
    ///
    /// # Errors
    ///
    /// As [`Estimated::estimate`].
    pub fn new(estimated: Estimated<'a>) -> Result<Self, RunError> {
        let estimate = estimated.estimate()?;
        Ok(Self {
            step: estimated.step_of(&estimate)?,
            summed_bytes: estimated.settings.accumulated_bytes(estimate.trainable),
            estimate,
            estimated,
        })
    }

    /// The plan that a request finds, or why none fits.
    ///
    /// # Errors
    ///
    /// If the request makes no sense.
    pub fn plan(&self, request: &Request) -> Result<Result<Planned, PlanError>, RunError> {
        match self.step.plan(request) {
            Ok(plan) => Ok(Ok(plan)),
            Err(RunError::Plan(error @ PlanError::Infeasible { .. })) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }
}
