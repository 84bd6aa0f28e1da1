//! `rekindle estimate`: a training's memory by kind, plain and under a plan, and whether that fits, from shapes.

#[cfg(test)]
mod tests;

use rekindle::{
    Dtype,
    record::{Kernels, PlanSummary, Update},
};
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    Estimated,
    fit::{Breakdown, spread},
    session::{Infeasible, MeasuredStep, Planned, RunError, ScheduleRequest},
    settings::UpdateChoice,
    update::{Updates, updates},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::train;
use crate::{
    args::{EstimateArgs, MeasureArgs, TrainArgs},
    config::{self, Config},
    failure::{Failure, Outcome, advised},
    output,
    table::{self, Cell, several, thousands},
    terminal,
};

/// Format tag of an [`Estimate`].
pub const ESTIMATE_FORMAT: &str = "rekindle-estimate/5";

/// Runs the estimate. If no plan fits the budget, the error is reported after the report.
pub fn run(args: &EstimateArgs) -> Outcome {
    let measure = MeasureArgs {
        device: args.device,
        ..MeasureArgs::default()
    };
    let mut config = config::load(&TrainArgs {
        schedule: args.schedule,
        ..args.config.training(measure)
    })?;
    let device = config.device().listed()?;
    let _held = config.data_again();
    let run = &config.run;
    let asked = run.segments.is_some() || run.budget.is_some() || run.planner.is_some();
    let wanted = (asked || run.plan.is_some()).then(|| train::request(&config, &device));
    let wanted = wanted.transpose()?;
    let budget = match &wanted {
        Some(ScheduleRequest::Plan(request)) => request.budget,
        _ => None,
    };
    let of = match budget {
        Some(_) => "budget".into(),
        None => device.device.to_string(),
    };
    let limit = budget.or(device.available_bytes());
    let limit = limit.map(|bytes| Limit { of, bytes });
    let most = limit.as_ref().map(|limit| limit.bytes);
    train::find_parts(&mut config, most, &device, |_| None)?;
    if let Some(ScheduleRequest::Given(file)) = &wanted {
        config.training.update = file.plan.update.into();
    }
    let updates = updates(&config.training, budget.is_some());
    let either = !matches!(updates, Updates::One(_));
    let estimate = |config: &Config, limit| {
        let step = train::estimated(config, &config.training, &device);
        Estimate::new(config, step, wanted.as_ref(), limit)
    };
    let mut found = estimate(&config, limit.clone())?;
    // By shapes neither update is faster: a training updates in the backward pass only to fit.
    if either && found.1.is_some() {
        config.training.update = UpdateChoice::InBackward;
        found = estimate(&config, limit)?;
    }
    let (estimate, impossible) = found;
    output::answer(args.answer.json, &estimate, Estimate::text)?;
    impossible.map_or(Ok(()), |error| Err(error.into()))
}

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
    /// The fewest segments that fit, of up to 24 numbers of them; `null` where plain fits, none do, or a number of
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
        step: Estimated<'_>,
        wanted: Option<&ScheduleRequest>,
        limit: Option<Limit>,
    ) -> Result<(Self, Option<Infeasible>), Failure> {
        let (kernels, known) = (step.kernels, step.estimate()?);
        let step = MeasuredStep::estimated(&known, &config.model, &config.training);
        let stages = &step.chain.stages;
        let most = limit.as_ref().map(|limit| limit.bytes);
        let column = |plan: &Planned, fits| Column {
            plan: plan.summary.clone(),
            fits,
            peak: Breakdown::new(&known, plan),
        };
        let plain = step.plan(&Request::of(Planner::None, None))?;
        let plain_fits = match most {
            Some(_) => Some(step.try_plan(&Request::of(Planner::None, most))?.is_some()),
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
                let request = Request::of(Planner::Segments(Some(count)), exceeded);
                if let Some(fewest) = step.try_plan(&request)? {
                    segments = Some(column(&fewest, Some(true)));
                    break;
                }
            }
        }
        let found = match (wanted, exceeded) {
            (Some(ScheduleRequest::Plan(request)), _) => Some(step.plan(request)),
            (Some(ScheduleRequest::Given(file)), _) => Some(step.plan_given(file)),
            (None, Some(_)) => Some(step.plan(&Request::of(Planner::Optimal, exceeded))),
            (None, None) => None,
        };
        let (found, refused) = match found.transpose() {
            Ok(found) => (found, None),
            Err(RunError::Infeasible(error)) => (None, Some(error)),
            Err(error) => return Err(error.into()),
        };
        let plan = found.map(|found| {
            let fits = most.map(|most| found.summary.predicted_peak <= most);
            column(&found, fits)
        });
        let smallest_budget_bytes = refused.as_ref().map(|error| error.smallest_of_all);
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

    /// The verdict, the table, and what to know of it.
    fn text(&self) -> String {
        let batch = match self.micro_batch {
            all if all == self.batch => format!("batch {all}"),
            part => format!("batch {} in parts of {part}", self.batch),
        };
        let about = format!(
            "{} parameters in {}, {batch}, {}.",
            thousands(self.param_count),
            several(self.stages, "stage"),
            self.dtype,
        );
        let mut sentences = vec![about];
        if self.plain.plan.update == Update::InBackward {
            sentences.push("Parameters are updated in the backward pass.".into());
        }
        if self.on_gpu {
            sentences.push("Bytes are live buffers: a GPU's pools and driver take more.".into());
        }
        let sentences: Vec<_> = sentences
            .iter()
            .map(|one| terminal::wrapped(one, ""))
            .collect();
        let verdict = terminal::wrapped(&self.verdict(), "");
        format!(
            "{verdict}\n\n{}\n\n{}\n",
            self.table(),
            sentences.join("\n")
        )
    }

    fn verdict(&self) -> String {
        let Some(limit) = &self.limit else {
            return format!("The plain run takes {}.", self.plain.plan.predicted_peak);
        };
        let of = match limit.of.as_str() {
            "budget" => format!("the budget of {}", limit.bytes),
            device => format!("the {} of {device}", limit.bytes),
        };
        let fits = |column: &&Column| column.fits == Some(true);
        let plans = [&self.segments, &self.plan].into_iter().flatten();
        let fastest = plans
            .filter(fits)
            .min_by(|a, b| a.plan.slowdown().total_cmp(&b.plan.slowdown()));
        match (fastest, self.smallest_budget_bytes) {
            _ if self.plain.fits == Some(true) => format!("The plain run fits {of}."),
            (Some(fastest), _) => format!(
                "Fits {of} at {:.2}x the plain step time, by {}.",
                fastest.plan.slowdown(),
                fastest.name()
            ),
            (None, Some(smallest)) => {
                let smallest = advised(smallest);
                format!("No plan fits {of}; the smallest is `--budget {smallest}`.")
            }
            (None, None) => format!("This plan does not fit {of}."),
        }
    }

    fn table(&self) -> table::Table {
        let header = "|peak|parameters|optimizer|gradients|activations|step|fits";
        let mut table = table::table(header, 1..7);
        let rows = [
            Some(&self.plain),
            self.segments.as_ref(),
            self.plan.as_ref(),
        ];
        for row in rows.into_iter().flatten() {
            let peak = &row.peak;
            table.add_row([
                Cell::from(row.name()),
                Cell::bytes(row.plan.predicted_peak),
                Cell::bytes(peak.parameters_bytes),
                Cell::bytes(peak.optimizer_bytes),
                Cell::bytes(peak.gradients_bytes),
                Cell::bytes(peak.activations_bytes),
                format!("{:.2}x", row.plan.slowdown()).into(),
                Cell::text(row.fits.map(|fits| if fits { "yes" } else { "no" }.into())),
            ]);
        }
        table
    }
}

impl Column {
    fn name(&self) -> String {
        match self.plan.segments.as_ref().map(Vec::len) {
            Some(1) => "plain".into(),
            Some(segments) => format!("{segments} segments"),
            None => format!("plan `{}`", self.plan.planner),
        }
    }
}
