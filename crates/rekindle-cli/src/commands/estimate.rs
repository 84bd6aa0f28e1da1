//! `rekindle estimate`: a training's memory by kind, and whether it fits, from shapes.

use rekindle::size::Size;
use rekindle_train::{
    kernels,
    session::ScheduleRequest,
    update::{UpdateChoice, Updates, updates},
};

use super::train;
use crate::{
    args::{EstimateArgs, MeasureArgs, TrainArgs},
    config,
    estimate::{Estimate, Limit},
    failure::{Failure, Outcome},
    output,
};

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
    let run = &config.run;
    let asked = run.segments.is_some() || run.budget.is_some() || run.planner.is_some();
    let bytes = |size: Size| size.of(device.available_bytes()).map_err(Failure::usage);
    let wanted = (asked || run.plan.is_some()).then(|| train::request(run, bytes));
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
    let kernels = kernels(device.device);
    if let Some(ScheduleRequest::Given(file)) = &wanted {
        config.training.update = file.plan.update.into();
    }
    let updates = updates(&config.training, budget.is_some());
    let either = !matches!(updates, Updates::One(_));
    let mut found = Estimate::new(&config, kernels, wanted.as_ref(), limit.clone())?;
    // By shapes neither update is faster: a training updates in the backward pass only to fit.
    if either && found.1.is_some() {
        config.training.update = UpdateChoice::InBackward;
        found = Estimate::new(&config, kernels, wanted.as_ref(), limit)?;
    }
    let (estimate, impossible) = found;
    if args.answer.json {
        output::json(&estimate)?;
    } else {
        output::text(&estimate.text())?;
    }
    impossible.map_or(Ok(()), |error| Err(error.into()))
}
