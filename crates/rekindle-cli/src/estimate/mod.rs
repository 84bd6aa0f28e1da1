//! What a config takes, counted from shapes: nothing is run.
//!
//! | module | what it owns |
//! |---|---|
//! | [`layers`] | the tree of layers |
//! | [`breakdown`] | what a peak is made of |
//! | [`recorded`] | the step as operations, by shapes |
//! | [`ranks`] | the batch shared by several ranks |
//! | [`advice`] | whether it fits, and what would |

mod advice;
mod breakdown;
mod layers;
pub mod ranks;
mod recorded;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use rekindle::{Dtype, profile::Measured, record::Update};
use rekindle_plan::{Bytes, Plan, PlanError, PlannerKind};
use rekindle_train::model::{kernels::Kernels, stages::StagePlan};
use schemars::JsonSchema;
use serde::Serialize;

use self::{advice::Advice, breakdown::Breakdown, layers::Layer, ranks::RanksEstimate};
pub use self::{advice::Limit, layers::describe, recorded::RecordedStep};
use crate::{config::Config, failure::Failure, terminal};

/// Format tag of an [`Estimate`].
pub const ESTIMATE_FORMAT: &str = "rekindle-estimate/1";

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
    /// When parameters are updated: as configured, with `auto` after the step, or in the backward pass where no plan within
    /// the budget is found otherwise.
    update: Update,
    /// Whether temporaries are those of a GPU's kernels.
    on_gpu: bool,
    /// The step without recomputing.
    plain: Column,
    /// The plan that was asked for; `null` where none was, or none fits.
    plan: Option<Column>,
    /// The step as `train` records it, by shapes; `null` where it has more than 50,000 operations.
    recorded: Option<RecordedStep>,
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

/// What is to be estimated beside the plain run.
pub enum Wanted<'a> {
    /// Nothing.
    Plain,
    /// What a planner finds.
    Plan(&'a dyn Fn(&Measured) -> Result<Plan, PlanError>),
}

impl Estimate {
    /// Counts. The second answer is why what is wanted cannot be had, where no plan fits.
    pub fn new(
        config: &Config,
        kernels: Kernels,
        wanted: &Wanted<'_>,
        limit: Option<Limit>,
    ) -> Result<(Self, Option<PlanError>), Failure> {
        let (model, shape) = (&config.model, &config.shape);
        let counted = config.counted(&config.training, kernels);
        let micro_batch = config.training.micro_batch();
        let measured = counted.chain();
        let plain = measured.plain()?;
        let column = |plan: &Plan, segments: Option<usize>| -> Result<Column, Failure> {
            Ok(Column {
                planner: plan.planner.to_string(),
                segments,
                step_ratio: plan.step.0 / plain.step.0,
                peak: Breakdown::new(&counted, &measured, &plan.schedule)?,
            })
        };
        let found = match wanted {
            Wanted::Plain => None,
            Wanted::Plan(planner) => Some(planner(&measured)),
        };
        let plan = match &found {
            Some(Ok(plan)) => {
                let segments = plan.schedule.segments().map(|segments| segments.len());
                Some(column(plan, segments)?)
            }
            Some(Err(PlanError::Infeasible { .. })) | None => None,
            Some(Err(error)) => return Err(error.clone().into()),
        };
        let advice = match limit {
            Some(limit) => {
                let known = found.as_ref().filter(|found| answers(found, &limit));
                Some(Advice::new(&counted, &measured, &plain, limit, known)?)
            }
            None => None,
        };
        let impossible = found.and_then(Result::err);
        let stages = &measured.chain.stages;
        let layers = layers::layers(model, shape, micro_batch, counted.bytes);
        let estimate = Self {
            format: ESTIMATE_FORMAT,
            batch: config.training.batch,
            dtype: config.training.dtype,
            micro_batch,
            input_shape: model.input.dims.clone(),
            input_bytes: measured.chain.input_bytes,
            stages: StagePlan::new(model, shape).stages.len(),
            param_count: shape.param_count(),
            frozen_count: layers.iter().map(|layer| layer.frozen_count).sum(),
            param_bytes: stages.iter().map(|stage| stage.param_bytes).sum(),
            multiply_adds: layers.iter().map(|layer| layer.multiply_adds).sum(),
            saved_bytes: stages.iter().map(|stage| stage.saved_bytes).sum(),
            layers,
            update: config.training.update.fixed().unwrap_or_default(),
            on_gpu: kernels == Kernels::Device,
            plain: column(&plain, Some(1))?,
            plan,
            recorded: None,
            ranks: Vec::new(),
            advice,
        };
        Ok((estimate, impossible))
    }

    /// The same with what the recorded step says.
    #[must_use]
    pub fn with_recorded(self, recorded: Option<RecordedStep>) -> Self {
        Self { recorded, ..self }
    }

    /// The same with what several ranks take.
    #[must_use]
    pub fn with_ranks(self, ranks: Vec<RanksEstimate>) -> Self {
        Self { ranks, ..self }
    }

    /// For people: so many levels of layers inside layers; `colours` paints the bars.
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
        if let Some(recorded) = &self.recorded {
            let _ = writeln!(text, "\n{}", recorded.text());
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

/// Whether what was found is what the optimal planner finds within the limit.
fn answers(found: &Result<Plan, PlanError>, limit: &Limit) -> bool {
    let planner = match found {
        Ok(plan) => plan.planner,
        Err(PlanError::Infeasible { planner, .. }) => *planner,
        Err(_) => return false,
    };
    limit.of == Limit::BUDGET && matches!(planner, PlannerKind::Auto | PlannerKind::Optimal)
}
