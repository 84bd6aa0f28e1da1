//! `rekindle verify`: the plain run and checkpointed runs, compared value by value.

use rekindle_plan::{Planner, Request};
use rekindle_train::{
    device::{DeviceId, DeviceInfo},
    session::{Job, ScheduleRequest},
    verify::{Comparison, usual_segments, verify},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::train;
use crate::{
    args::{TrainArgs, VerifyArgs},
    config::{self, Config},
    failure::{Failure, Outcome},
    output,
    table::{self, several},
};

/// Format tag of [`VerifyRecord`].
pub const VERIFY_FORMAT: &str = "rekindle-verify/2";

/// What `verify --json` writes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyRecord {
    format: &'static str,
    /// Where it ran.
    #[schemars(with = "String")]
    device: DeviceId,
    /// Optimizer steps of each comparison; with `accumulate`, on the first part of each batch.
    steps: usize,
    /// The largest difference that passes; 0 on the processor.
    tolerance: f64,
    /// Whether all comparisons pass. If not, the exit code is 1.
    passed: bool,
    /// One comparison for each plan.
    comparisons: Vec<Comparison>,
}

/// Largest relative difference that is attributed to rounding on a GPU, where the fastest kernel may be chosen
/// differently and sums may be taken in another order. On the CPU no difference is tolerated.
const GPU_TOLERANCE: f64 = 1e-3;

/// The same for half types, whose precision is lower: in units in the last place.
const GPU_ULPS: f64 = 8.0;

/// Compares, and fails if anything differs.
pub fn run(args: &VerifyArgs) -> Outcome {
    let config = config::load(&TrainArgs {
        steps: Some(args.steps),
        ..args.config.training(args.measure.clone())
    })?;
    let device = config.device().resolve()?;
    let data = config.open_data()?;
    let schedule = ScheduleRequest::Plan(Request::default());
    let job = Job {
        device: Some(&device),
        count: config.count(),
        host: train::host(&config.run, &device)?,
        ..Job::new(&config.model, &*data.train, &config.training, schedule)
    };
    note!(
        "comparing {} with the plain run on {} ({})",
        several(args.steps, "step"),
        device.device,
        device.name
    );
    let tolerance = match device.device {
        DeviceId::Cpu => 0.0,
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => {
            GPU_TOLERANCE.max(GPU_ULPS * config.training.dtype.float().finfo().epsilon)
        }
    };
    let plans = plans(args, &config, &device)?;
    let comparisons = verify(&job, plans, device.device, &mut |comparison| {
        note!("{}: {}", comparison.plan, verdict(comparison, tolerance));
    })?;
    let differs = |one: &&Comparison| verdict(one, tolerance) == DIFFERS;
    let failed = comparisons.iter().filter(differs).count();
    let plans = comparisons.len();
    let record = VerifyRecord {
        format: VERIFY_FORMAT,
        device: device.device,
        steps: args.steps,
        tolerance,
        passed: failed == 0,
        comparisons,
    };
    output::answer(args.answer.json, &record, |record| {
        let only = match config.training.parts() {
            1 => String::new(),
            parts => format!("only the first of the {parts} parts of each step is compared\n"),
        };
        format!("{}{only}", table(&record.comparisons, tolerance))
    })?;
    if failed > 0 {
        return Err(Failure::other(format!(
            "{failed} of {plans} runs differ from the plain run"
        )));
    }
    Ok(())
}

/// The requested plans, or else the config's own plan and segments.
fn plans(
    args: &VerifyArgs,
    config: &Config,
    device: &DeviceInfo,
) -> Result<Vec<(String, ScheduleRequest)>, Failure> {
    let run = &config.run;
    let mut plans = Vec::new();
    let mut segments = args.segments.clone();
    if segments.is_empty() && args.budgets.is_empty() {
        if run.budget.is_some() || run.plan.is_some() || run.planner.is_some() {
            plans.push(("the config's plan".into(), train::request(config, device)?));
        }
        segments = usual_segments(config.shape.stages.len());
        segments.extend(run.segments.filter(|count| !segments.contains(count)));
    }
    for &budget in &args.budgets {
        let request = Request::within(train::budget_of(budget, device, config)?);
        plans.push((format!("within {budget}"), ScheduleRequest::Plan(request)));
    }
    for count in segments {
        let name = match count {
            1 => "1 segment (plain)".to_owned(),
            _ => format!("{count} segments"),
        };
        let request = Request::of(Planner::Segments(Some(count)), None);
        plans.push((name, ScheduleRequest::Plan(request)));
    }
    Ok(plans)
}

/// The verdict that fails.
const DIFFERS: &str = "DIFFERS";

fn verdict(comparison: &Comparison, tolerance: f64) -> &'static str {
    let largest = comparison
        .loss
        .max(comparison.gradients)
        .max(comparison.state);
    match comparison.identical {
        true => "identical",
        false if largest <= tolerance && tolerance > 0.0 => "same within rounding",
        false => DIFFERS,
    }
}

fn table(comparisons: &[Comparison], tolerance: f64) -> String {
    let mut table = table::table(
        "plan|planner|loss|gradients|parameters and statistics|",
        2..5,
    );
    for comparison in comparisons {
        table.add_row([
            comparison.plan.clone(),
            comparison.planner.clone(),
            format!("{:.1e}", comparison.loss),
            format!("{:.1e}", comparison.gradients),
            format!("{:.1e}", comparison.state),
            verdict(comparison, tolerance).to_owned(),
        ]);
    }
    format!("{table}\n")
}
