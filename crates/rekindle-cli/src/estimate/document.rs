//! What an estimate answers: a model's layers, and its memory at one batch size.

use rekindle::{
    Dtype,
    record::{Kernels, Update},
};
use rekindle_plan::{Bytes, PlanError, Planner, Request};
use rekindle_train::{
    fit::{Advice, Breakdown, Budgets, Known, Limit},
    session::{Order, Planned},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::layers::{self, Layer};
use crate::{config::Config, failure::Failure};

/// Format tag of an [`Estimate`].
pub const ESTIMATE_FORMAT: &str = "rekindle-estimate/3";

/// A model's layers, and its memory at one batch size.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Estimate {
    pub(super) format: &'static str,
    /// Samples in each step.
    pub(super) batch: usize,
    /// Type of parameters and activations.
    pub(super) dtype: Dtype,
    /// Samples that run at once: less than `batch` where a batch runs in parts. All bytes are for these.
    pub(super) micro_batch: usize,
    /// Shape of one input sample.
    pub(super) input_shape: Vec<usize>,
    /// Bytes of the input samples that run at once.
    pub(super) input_bytes: Bytes,
    /// The layers in order.
    pub(super) layers: Vec<Layer>,
    /// Number of stages, the smallest units that are kept or recomputed.
    pub(super) stages: usize,
    /// Parameters that are trained.
    pub(super) param_count: u64,
    /// Numbers that are kept and not trained: running statistics.
    pub(super) frozen_count: u64,
    /// Bytes of these parameters.
    pub(super) param_bytes: Bytes,
    /// Multiply-adds of one forward.
    pub(super) multiply_adds: u64,
    /// Bytes that all stages keep in a plain step, outputs included, the input not.
    pub(super) saved_bytes: Bytes,
    /// Number of operations of the step.
    pub(super) operations: usize,
    /// When parameters are updated: as configured, with `auto` after the step, or in the backward pass where no plan within
    /// the budget is found otherwise.
    pub(super) update: Update,
    /// Whether temporaries are those of a GPU's kernels.
    pub(super) on_gpu: bool,
    /// The step without recomputing.
    pub(super) plain: Column,
    /// The plan that was asked for; `null` where none was, or none fits.
    pub(super) plan: Option<Column>,
    /// What smaller budgets cost; `null` where the step has more than 60,000 operations.
    pub(super) budgets: Option<Budgets>,
    /// Whether the step fits the budget, or else the device; `null` where neither is known.
    pub(super) advice: Option<Advice>,
}

/// One way to run a step.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Column {
    /// The planner that found the schedule.
    pub(super) planner: String,
    /// Number of segments; `null` for nested schedules.
    pub(super) segments: Option<usize>,
    /// Estimated step time, as a multiple of the plain step's.
    pub(super) step_ratio: f64,
    /// What the peak consists of.
    pub(super) peak: Breakdown,
}

/// What is to be estimated beside the plain run.
pub enum Wanted {
    /// Nothing.
    Plain,
    /// What a planner finds.
    Plan(Request),
    /// A plan that was made before, by the planner of this name.
    Made(Order, String),
}

impl Wanted {
    /// The budget that was asked for.
    fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            _ => None,
        }
    }
}

impl Estimate {
    /// Estimates. The second answer is why what is wanted cannot be had, where no plan fits.
    pub fn new(
        config: &Config,
        kernels: Kernels,
        wanted: &Wanted,
        limit: Option<Limit>,
    ) -> Result<(Self, Option<PlanError>), Failure> {
        let known = Known::new(config.estimated(&config.training, kernels))?;
        let plain = known.step.plan(&Request {
            planner: Planner::None,
            ..Request::default()
        })?;
        let column = |plan: &Planned, segments: Option<usize>| Column {
            planner: plan.planner.clone(),
            segments,
            step_ratio: plan.step.0 / plain.step.0,
            peak: Breakdown::new(&known, plan),
        };
        let found = match wanted {
            Wanted::Plain => None,
            Wanted::Plan(request) => Some(known.plan(request)?),
            Wanted::Made(order, planner) => {
                Some(Ok(known.step.plan_order(order, planner.clone())?))
            }
        };
        let plan = match &found {
            Some(Ok(plan)) => Some(column(plan, plan.segments.as_ref().map(Vec::len))),
            _ => None,
        };
        let asked = match wanted {
            Wanted::Plan(request) => request.planner,
            _ => Planner::None,
        };
        let answers = |limit: &Limit| {
            limit.of == Limit::BUDGET && matches!(asked, Planner::Auto | Planner::Optimal)
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
            budgets: Budgets::new(&known.estimate, wanted.budget())?,
            plain: column(&plain, Some(1)),
            plan,
            advice,
        };
        Ok((estimate, impossible))
    }
}
