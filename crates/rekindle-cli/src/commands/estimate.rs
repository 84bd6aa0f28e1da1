//! `rekindle estimate`: a training's memory by kind, and whether it fits, from shapes.

use rekindle_plan::{PlanError, Request};
use rekindle_train::{
    device::DeviceInfo,
    kernels,
    update::{UpdateChoice, Updates, updates},
};

use super::train;
use crate::{
    args::{EstimateArgs, MeasureArgs},
    config::{self, Overrides, RunKeys},
    estimate::{Estimate, Limit, Wanted},
    failure::{Failure, Outcome},
    output, plan_file,
};

/// Runs the estimate. If no plan fits the budget, the error is reported after the report.
pub fn run(args: &EstimateArgs) -> Outcome {
    let measure = MeasureArgs {
        device: args.device,
        ..MeasureArgs::default()
    };
    let overrides = Overrides::new(&args.config.replace, &measure);
    let mut config = config::load(&args.config.config, &overrides)?;
    let device = config.device().listed()?;
    config.run = config.run.replaced(&args.schedule, None);
    let request = request(&config.run, &device)?;
    let budget = request.as_ref().and_then(|request| request.budget);
    let of = match budget {
        Some(_) => "budget".into(),
        None => device.device.to_string(),
    };
    let limit = budget.or(device.available_bytes());
    let limit = limit.map(|bytes| Limit { of, bytes });
    let kernels = kernels(device.device);
    let wanted = match (&config.run.plan, request) {
        (Some(path), _) => {
            let file = plan_file::read(path)?;
            config.training.update = file.plan.update.into();
            Wanted::Made(Box::new(file))
        }
        (None, Some(request)) => Wanted::Plan(request),
        (None, None) => Wanted::Fitting,
    };
    let updates = updates(&config.training, budget.is_some());
    let either = !matches!(wanted, Wanted::Made(..)) && !matches!(updates, Updates::One(_));
    let mut found = Estimate::new(&config, kernels, &wanted, limit.clone())?;
    // By shapes neither update is faster: a training updates in the backward pass only to fit.
    if either && matches!(found.1, Some(PlanError::Infeasible { .. })) {
        config.training.update = UpdateChoice::InBackward;
        found = Estimate::new(&config, kernels, &wanted, limit)?;
    }
    let (estimate, impossible) = found;
    if args.answer.json {
        output::json(&estimate)?;
    } else {
        output::text(&estimate.text())?;
    }
    match impossible {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// What to plan, if anything.
fn request(run: &RunKeys, device: &DeviceInfo) -> Result<Option<Request>, Failure> {
    if run.segments.is_none() && run.budget.is_none() && run.planner.is_none() {
        return Ok(None);
    }
    let budget = match run.budget {
        Some(size) => Some(size.of(device.available_bytes()).map_err(Failure::usage)?),
        None => None,
    };
    train::plan_request(run, budget).map(Some)
}
