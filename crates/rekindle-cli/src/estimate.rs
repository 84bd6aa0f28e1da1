//! What an estimate answers: a training's memory by its shapes, plain and under a plan, and whether that fits.

mod text;

#[cfg(test)]
mod tests;

use rekindle::{
    Dtype,
    record::{Kernels, PlanSummary},
};
use rekindle_plan::{Bytes, PlanError, Planner};
use rekindle_train::{
    fit::{Breakdown, spread},
    session::{MeasuredStep, Planned, RunError, ScheduleRequest},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{config::Config, failure::Failure};

/// Format tag of an [`Estimate`].
pub const ESTIMATE_FORMAT: &str = "rekindle-estimate/5";

/// A training's memory by its shapes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Estimate {
    format: &'static str,
    /// Samples in each step.
    batch: usize,
    /// Samples that run at once: less than `batch` where a batch runs in parts. All bytes are for these.
    micro_batch: usize,
    /// Type of parameters and activations.
    dtype: Dtype,
    /// Parameters that are trained.
    param_count: u64,
    /// Numbers that are kept and not trained: running statistics.
    frozen_count: u64,
    /// Bytes of the trained parameters.
    param_bytes: Bytes,
    /// Bytes that all stages keep in a plain step, outputs included, the input not.
    saved_bytes: Bytes,
    /// Number of stages, the smallest units that are kept or recomputed.
    stages: usize,
    /// Whether temporaries are those of a GPU's kernels.
    on_gpu: bool,
    /// The memory that a step must fit; `null` where it is not known.
    limit: Option<Limit>,
    /// The step without recomputing.
    plain: Column,
    /// The fewest equal segments that fit, of up to 24 numbers of them; `null` where plain fits, none do, or a number of
    /// segments or a plan file was asked for.
    segments: Option<Column>,
    /// The plan that was asked for, or else the fastest over stages that fits the limit; `null` where plain fits it and
    /// nothing was asked for, and where no plan fits.
    plan: Option<Column>,
    /// The smallest budget that some plan fits, where none fits; else `null`.
    smallest_budget_bytes: Option<Bytes>,
}

/// The most memory that there is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Limit {
    /// `budget`, or the device's name.
    pub of: String,
    /// Bytes that a step may take.
    pub bytes: Bytes,
}

/// One way to run a step.
#[derive(Debug, Serialize, JsonSchema)]
struct Column {
    /// The plan. Its times are those of a nominal machine: of use only in proportion to each other.
    #[serde(flatten)]
    plan: PlanSummary,
    /// Whether it fits the limit; `null` without one.
    fits: Option<bool>,
    /// What the peak consists of.
    peak: Breakdown,
}

impl Estimate {
    /// Estimates the plain run and what is wanted besides; where nothing is, what fits where the plain run does not. The
    /// second answer is why what is wanted cannot be had, where no plan fits.
    pub fn new(
        config: &Config,
        kernels: Kernels,
        wanted: Option<&ScheduleRequest>,
        limit: Option<Limit>,
    ) -> Result<(Self, Option<PlanError>), Failure> {
        let known = config.estimated(&config.training, kernels).estimate()?;
        let step = MeasuredStep::estimated(&known, &config.model, &config.training);
        let stages = &step.chain.stages;
        let most = limit.as_ref().map(|limit| limit.bytes);
        let column = |plan: &Planned, fits| Column {
            plan: plan.summary.clone(),
            fits,
            peak: Breakdown::new(&known, &config.training, plan),
        };
        let plain = step.plan(None, Planner::None)?;
        let plain_fits = match most {
            Some(_) => Some(step.try_plan(most, Planner::None)?.is_some()),
            None => None,
        };
        let exceeded = most.filter(|_| plain_fits == Some(false));
        let asked = match wanted {
            Some(ScheduleRequest::Plan(request)) => {
                matches!(request.planner, Planner::Segments(_))
            }
            Some(ScheduleRequest::Given(_)) => true,
            None => false,
        };
        let mut segments = None;
        if exceeded.is_some() && !asked {
            for count in spread(stages.len()) {
                let equal = step.try_plan(exceeded, Planner::Segments(Some(count)))?;
                if let Some(equal) = equal {
                    segments = Some(column(&equal, Some(true)));
                    break;
                }
            }
        }
        let found = match (wanted, exceeded) {
            (Some(ScheduleRequest::Plan(request)), _) => {
                Some(step.plan(request.budget, request.planner))
            }
            (Some(ScheduleRequest::Given(file)), _) => Some(step.plan_given(file)),
            (None, Some(_)) => Some(step.plan(exceeded, Planner::Optimal)),
            (None, None) => None,
        };
        let mut plan = None;
        let (mut refused, mut smallest_budget_bytes) = (None, None);
        match found {
            Some(Ok(found)) => {
                let fits = most.map(|most| found.summary.predicted_peak <= most);
                plan = Some(column(&found, fits));
            }
            Some(Err(RunError::Plan(error))) => {
                let PlanError::Infeasible {
                    smallest_of_all, ..
                } = error
                else {
                    return Err(error.into());
                };
                smallest_budget_bytes = Some(smallest_of_all);
                refused = Some(error);
            }
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
        let settings = &config.training;
        let estimate = Self {
            format: ESTIMATE_FORMAT,
            batch: settings.batch,
            micro_batch: settings.micro_batch(),
            dtype: settings.dtype,
            param_count: known.trainable,
            frozen_count: known.frozen,
            param_bytes: known.gradient_bytes,
            saved_bytes: stages.iter().map(|stage| stage.saved_bytes).sum(),
            stages: stages.len(),
            on_gpu: kernels == Kernels::Device,
            plain: column(&plain, plain_fits),
            segments,
            plan,
            smallest_budget_bytes,
            limit,
        };
        Ok((estimate, refused.filter(|_| wanted.is_some())))
    }
}
