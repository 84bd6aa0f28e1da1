//! `rekindle train`: from a config to a trained model and a comparison of promises with measurements.

use rekindle::train::session::{self, Job, ScheduleRequest};
use rekindle_plan::{PlanRequest, PlannerKind};

use crate::{
    args::TrainArgs,
    config::{self, Config, Overrides},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    output,
    progress::{self, Progress},
    size::Size,
    summary,
};

/// Trains.
pub fn run(args: &TrainArgs) -> Outcome {
    let config = config::load(
        &args.config.config,
        &Overrides {
            steps: args.steps,
            seed: args.seed,
            ..Overrides::from(&args.config)
        },
    )?;
    let device = device(args, &config)?.resolve()?;
    let request = request(args, &config, device.total_bytes)?;
    let data = config.open_data()?;

    let job = Job {
        model: &config.model,
        train: &*data.train,
        eval: data.eval.as_deref(),
        settings: &config.training,
        schedule: ScheduleRequest::Plan(request),
        compare: args.compare,
        free: device.free_bytes,
    };
    progress::stop_on_interrupt();
    eprintln!(
        "{} on {} ({})",
        args.config.config.display(),
        device.device,
        device.name
    );
    let mut progress = Progress::new(config.training.steps, config.training.batch);
    let result = session::run(&job, device.device, &mut progress);
    progress.finish();
    let record = result?;

    if args.json {
        output::json(&record)?;
    } else {
        output::text(&format!("\n{}\n", summary::closing(&record)))?;
    }
    if record.interrupted {
        return Err(Failure::with_help(
            exit::INTERRUPTED,
            format!(
                "interrupted after step {} of {}",
                record.steps, config.training.steps
            ),
            "everything above is complete for the steps that were done",
        ));
    }
    Ok(())
}

/// The device: as typed, else as in the config, else chosen.
fn device(args: &TrainArgs, config: &Config) -> Result<DeviceChoice, Failure> {
    match (args.device, &config.run.device) {
        (Some(device), _) => Ok(device),
        (None, Some(text)) => text.parse().map_err(Failure::usage),
        (None, None) => Ok(DeviceChoice::Auto),
    }
}

/// The plan to ask for: what is typed replaces what the config says.
fn request(
    args: &TrainArgs,
    config: &Config,
    device_bytes: Option<rekindle_plan::Bytes>,
) -> Result<PlanRequest, Failure> {
    let typed = args.segments.is_some() || args.budget.is_some() || args.planner.is_some();
    let (segments, budget, planner) = if typed {
        (args.segments, args.budget, args.planner)
    } else {
        (config.run.segments, config.run.budget, config.run.planner)
    };
    let budget = match budget {
        Some(size) => {
            let bytes = size.of(device_bytes).map_err(Failure::usage)?;
            if let (Some(all), Size::Bytes(_)) = (device_bytes, size)
                && bytes > all
            {
                return Err(Failure::usage(format!(
                    "a budget of {bytes} is more than the device has, which is {all}"
                )));
            }
            Some(bytes)
        }
        None => None,
    };
    let planner = planner.unwrap_or(match segments {
        Some(_) => PlannerKind::Uniform,
        None => PlannerKind::Auto,
    });
    Ok(PlanRequest {
        planner,
        budget,
        segments,
        ..PlanRequest::default()
    })
}
