//! Where a run's schedule comes from.

use rekindle::record::Wanted;
use rekindle_plan::{Bytes, Request};

use super::{PlanFile, RunError};

/// Where a run's schedule comes from.
pub enum ScheduleRequest {
    /// A planner finds it on the measured chain.
    Plan(Request),
    /// It was made before.
    Given(Box<PlanFile>),
}

impl ScheduleRequest {
    /// What the step is planned by.
    pub(super) fn wanted(&self) -> Result<Wanted, RunError> {
        Ok(match self {
            Self::Plan(request) => request.planner.into(),
            Self::Given(file) => file.order()?.into(),
        })
    }

    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            Self::Given(file) => file.plan.budget,
        }
    }
}
