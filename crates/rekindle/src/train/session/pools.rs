//! Which kind of pools a run uses on a GPU.
//!
//! The kind is fixed when a process touches its first device, before anything can be measured. A budget on reserved
//! bytes settles it; else the buffers of the run, estimated from shapes, are replayed against both kinds.

use rekindle_plan::{
    Chain, PlanRequest, Schedule, plan,
    pools::{PoolMode, choose},
};
use serde::{Deserialize, Serialize};

use super::{Job, RunError, ScheduleRequest};
use crate::{
    counted::Counted,
    meter::Count,
    model::{cost::ElementBytes, kernels::Kernels},
};

/// How a GPU's pools serve a run, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDecision {
    /// The kind.
    pub mode: PoolMode,
    /// One sentence.
    pub why: String,
}

/// Decides, where the device has pools.
pub(super) fn decide(job: &Job<'_>) -> Result<Option<PoolDecision>, RunError> {
    let Some(device) = job.pool_device else {
        return Ok(None);
    };
    if job.count == Count::Reserved && job.budget().is_some() {
        return Ok(Some(PoolDecision {
            mode: PoolMode::ExactSizes,
            why: "the budget bounds what pools reserve, and only pools of exact sizes can be trimmed to what is in use"
                .into(),
        }));
    }
    let chain = estimated_chain(job)?;
    let schedule = match &job.schedule {
        ScheduleRequest::Given { schedule, .. } => schedule.clone(),
        ScheduleRequest::Plan(request) => estimated_schedule(&chain, request)?,
    };
    Ok(Some(match choose(&chain, &schedule, device) {
        Ok(choice) => PoolDecision {
            mode: choice.mode,
            why: format!("by the buffers that shapes foretell, {}", choice.reason()),
        },
        Err(error) => PoolDecision {
            mode: PoolMode::ExactSizes,
            why: error.to_string(),
        },
    }))
}

/// What would be planned if shapes told everything; without regard to the budget where that is too small for them.
fn estimated_schedule(chain: &Chain, request: &PlanRequest) -> Result<Schedule, RunError> {
    let without_budget = PlanRequest {
        budget: None,
        ..*request
    };
    let plan = plan(chain, request).or_else(|_| plan(chain, &without_budget))?;
    Ok(plan.schedule)
}

/// The chain as shapes foretell it.
fn estimated_chain(job: &Job<'_>) -> Result<Chain, RunError> {
    let counted = Counted {
        model: job.model,
        shape: &job.model.infer()?,
        settings: job.settings,
        target: job.train.target(),
        bytes: ElementBytes::flex(job.settings.dtype),
        kernels: Kernels::Device,
    };
    Ok(counted.chain().chain)
}
