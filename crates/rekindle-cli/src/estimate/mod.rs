//! Estimates the memory and time of a config from shapes: the step is recorded, and nothing is run.
//!
//! | module | what it owns |
//! |---|---|
//! | [`layers`] | the tree of layers |
//! | [`breakdown`] | the parts of a peak |
//! | [`budgets`] | the time costs of smaller budgets |
//! | [`ranks`] | the batch shared by several ranks |
//! | [`advice`] | whether it fits, and which changes would make it fit |

mod advice;
mod breakdown;
mod budgets;
mod layers;
pub mod ranks;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use rekindle::{
    Dtype,
    record::{self, Kernels, Update},
};
use rekindle_plan::{Bytes, PlanError, PlanRequest, PlannerKind, Schedule};
use rekindle_train::{
    Estimated,
    session::{MeasuredStep, Planned, RunError},
};
use schemars::JsonSchema;
use serde::Serialize;

use self::{
    advice::Advice, breakdown::Breakdown, budgets::Budgets, layers::Layer, ranks::RanksEstimate,
};
pub use self::{advice::Limit, layers::describe};
use crate::{config::Config, failure::Failure, terminal};

/// Format tag of an [`Estimate`].
pub const ESTIMATE_FORMAT: &str = "rekindle-estimate/2";

/// A model's layers, and its memory at one batch size.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Estimate {
    format: &'static str,
    /// Samples in each step.
    batch: usize,
    /// Type of parameters and activations.
    dtype: Dtype,
    /// Samples that run at once: less than `batch` where a batch runs in parts. All bytes are for these.
    micro_batch: usize,
    /// Shape of one input sample.
    input_shape: Vec<usize>,
    /// Bytes of the input samples that run at once.
    input_bytes: Bytes,
    /// The layers in order.
    layers: Vec<Layer>,
    /// Number of stages, the smallest units that are kept or recomputed.
    stages: usize,
    /// Parameters that are trained.
    param_count: u64,
    /// Numbers that are kept and not trained: running statistics.
    frozen_count: u64,
    /// Bytes of these parameters.
    param_bytes: Bytes,
    /// Multiply-adds of one forward.
    multiply_adds: u64,
    /// Bytes that all stages keep in a plain step, outputs included, the input not.
    saved_bytes: Bytes,
    /// Number of operations of the step.
    operations: usize,
    /// When parameters are updated: as configured, with `auto` after the step, or in the backward pass where no plan within
    /// the budget is found otherwise.
    update: Update,
    /// Whether temporaries are those of a GPU's kernels.
    on_gpu: bool,
    /// The step without recomputing.
    plain: Column,
    /// The plan that was asked for; `null` where none was, or none fits.
    plan: Option<Column>,
    /// What smaller budgets cost; `null` where the step has more than 60,000 operations.
    budgets: Option<Budgets>,
    /// The batch shared by several ranks, for each number of them that was asked for.
    ranks: Vec<RanksEstimate>,
    /// Whether the step fits the budget, or else the device; `null` where neither is known.
    advice: Option<Advice>,
}

/// One way to run a step.
#[derive(Debug, Serialize, JsonSchema)]
struct Column {
    /// The planner that found the schedule.
    planner: String,
    /// Number of segments; `null` for nested schedules.
    segments: Option<usize>,
    /// Estimated step time, as a multiple of the plain step's.
    step_ratio: f64,
    /// What the peak consists of.
    peak: Breakdown,
}

/// What to estimate besides the plain run.
pub enum Wanted {
    /// Nothing.
    Plain,
    /// A planner's result.
    Plan(PlanRequest),
    /// A plan that was made before, by the planner of this name.
    Made(Schedule, String),
}

/// A step from shapes.
struct Known<'a> {
    estimated: Estimated<'a>,
    estimate: record::Estimate,
    step: MeasuredStep,
    /// The sum of gradients that is kept while a batch runs in parts.
    summed_bytes: Bytes,
}

impl<'a> Known<'a> {
    fn new(config: &'a Config, kernels: Kernels) -> Result<Self, Failure> {
        let estimated = config.estimated(&config.training, kernels);
        let estimate = estimated.estimate()?;
        Ok(Self {
            step: estimated.step_of(&estimate)?,
            summed_bytes: config.training.accumulated_bytes(estimate.trainable),
            estimate,
            estimated,
        })
    }

    /// The requested plan, or the reason why there is none.
    fn find(&self, wanted: &Wanted) -> Option<Result<Planned, RunError>> {
        match wanted {
            Wanted::Plain => None,
            Wanted::Plan(request) => Some(self.step.plan(request)),
            Wanted::Made(schedule, planner) => {
                Some(self.step.plan_schedule(schedule.clone(), planner.clone()))
            }
        }
    }
}

impl Estimate {
    /// Makes an estimate. The second result is the reason if the requested plan does not fit.
    pub fn new(
        config: &Config,
        kernels: Kernels,
        wanted: &Wanted,
        limit: Option<Limit>,
    ) -> Result<(Self, Option<PlanError>), Failure> {
        let known = Known::new(config, kernels)?;
        let plain = known.step.plan(&PlanRequest {
            planner: PlannerKind::None,
            ..PlanRequest::default()
        })?;
        let column = |plan: &Planned, segments: Option<usize>| Column {
            planner: plan.planner.clone(),
            segments,
            step_ratio: plan.step.0 / plain.step.0,
            peak: Breakdown::new(&known, plan),
        };
        let found = match known.find(wanted) {
            Some(Ok(plan)) => Some(Ok(plan)),
            Some(Err(RunError::Plan(error @ PlanError::Infeasible { .. }))) => Some(Err(error)),
            Some(Err(error)) => return Err(error.into()),
            None => None,
        };
        let plan = match &found {
            Some(Ok(plan)) => Some(column(plan, plan.segments.as_ref().map(Vec::len))),
            _ => None,
        };
        let asked = match wanted {
            Wanted::Plan(request) => request.planner,
            _ => PlannerKind::None,
        };
        let answers = |limit: &Limit| {
            limit.of == Limit::BUDGET && matches!(asked, PlannerKind::Auto | PlannerKind::Optimal)
        };
        let advice = match limit {
            Some(limit) => {
                let found = found.as_ref().filter(|_| answers(&limit));
                Some(Advice::new(&known, &plain, limit, found)?)
            }
            None => None,
        };
        let impossible = found.and_then(Result::err);
        let stages = &known.step.chain.stages;
        let layers = layers::layers(config);
        let estimate = Self {
            format: ESTIMATE_FORMAT,
            batch: config.training.batch,
            dtype: config.training.dtype,
            micro_batch: config.training.micro_batch(),
            input_shape: config.model.input.dims.clone(),
            input_bytes: layers::bytes(&config.model.input, &config.training),
            stages: stages.len(),
            param_count: known.estimate.trainable,
            frozen_count: known.estimate.frozen,
            param_bytes: known.estimate.gradient_bytes,
            multiply_adds: layers.iter().map(|layer| layer.multiply_adds).sum(),
            saved_bytes: stages.iter().map(|stage| stage.saved_bytes).sum(),
            operations: known.estimate.operations,
            layers,
            update: config.training.update.fixed().unwrap_or_default(),
            on_gpu: kernels == Kernels::Device,
            budgets: Budgets::new(&known.estimate, found_budget(wanted))?,
            plain: column(&plain, Some(1)),
            plan,
            ranks: Vec::new(),
            advice,
        };
        Ok((estimate, impossible))
    }

    /// Adds the estimates for several ranks.
    #[must_use]
    pub fn with_ranks(self, ranks: Vec<RanksEstimate>) -> Self {
        Self { ranks, ..self }
    }

    /// Text for users, with `levels` levels of nested layers; `colours` colours the bars.
    pub fn text(&self, levels: usize, colours: bool) -> String {
        let mut text = format!("{}\n\n", layers::text(self, levels));
        let _ = writeln!(text, "{}\n", breakdown::table(self));
        let _ = writeln!(
            text,
            "{}",
            breakdown::bars(self, terminal::width(), colours)
        );
        let _ = writeln!(text, "{}", terminal::wrapped(&breakdown::notes(self), ""));
        if self.update == Update::InBackward {
            let _ = writeln!(text, "Parameters are updated in the backward pass.");
        }
        if let Some(budgets) = &self.budgets {
            let _ = writeln!(text, "\n{}", budgets.text());
        }
        if !self.ranks.is_empty() {
            let _ = writeln!(text, "\n{}", ranks::text(&self.ranks));
        }
        if let Some(advice) = &self.advice {
            let _ = writeln!(text, "\n{advice}");
        }
        text
    }
}

/// The budget that was asked for.
fn found_budget(wanted: &Wanted) -> Option<Bytes> {
    match wanted {
        Wanted::Plan(request) => request.budget,
        _ => None,
    }
}
