//! `rekindle train`: from a config to a trained model and a comparison of promises with measurements.

use std::path::Path;

use rekindle::{
    device::{DeviceId, DeviceInfo},
    executor::Recheck,
    size::Size,
    train::{
        ExecutorKind, RunDirError,
        record::RunRecord,
        run_dir::RunDir,
        session::{self, Job, RunError, ScheduleRequest},
    },
};
use rekindle_plan::{Bytes, PlanRequest, PlannerKind};

use super::plan_elsewhere;
use crate::{
    args::TrainArgs,
    config::{self, Config, Overrides, RunKeys, TypedSchedule},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    infeasible::Infeasible,
    output,
    plan_file::PlanFile,
    plot,
    profiles::profiles,
    progress::Progress,
    started::{self, Started},
    summary,
    track::TrackFiles,
};

/// Trains.
pub fn run(args: TrainArgs) -> Outcome {
    let args = &started::resolved(args)?;
    let path = args.config.as_deref().unwrap_or(Path::new(""));
    let mut config = config::load(
        path,
        &Overrides {
            steps: args.steps,
            seed: args.seed,
            ..Overrides::from(&args.replace)
        },
    )?;
    let device = device(args.measure.device, &config)?.resolve()?;
    let run = config.run.replaced(TypedSchedule {
        segments: args.segments,
        budget: args.budget,
        plan: args.plan.as_deref(),
        planner: args.planner,
    });
    let out_of_force = config.run.budget_out_of_force(&run);
    config.run = run;
    let schedule = request(&config.run, &device)?;
    let data = config.open_data()?;
    let track = match &args.track {
        Some(path) => Some(TrackFiles::create(path)?),
        None => None,
    };

    let verify = args.verify.map(Into::into).or(config.run.verify);
    let name = path.display().to_string();
    let job = Job {
        name: &name,
        eval: data.eval.as_deref(),
        compare: args.compare,
        track: args.track.is_some(),
        count: config.count(args.count),
        recheck: verify.unwrap_or_default(),
        planner: (device.device == DeviceId::Cpu).then_some(plan_elsewhere::PLANNERS),
        executor: executor(args.measure.executor, verify)?,
        profiles: profiles(args.measure.fresh),
        run_dir: run_dir(args),
        ..Job::new(&config.model, &*data.train, &config.training, schedule)
    }
    .on(&device);
    let budget = match config.run.budget {
        Some(budget) => format!(", budget {budget}"),
        None => String::new(),
    };
    note!("{name} on {} ({}){budget}", device.device, device.name);
    if let Some(said) = out_of_force {
        note!("{said}");
    }
    let kept = match &args.output {
        Some(folder) => Some((Started::now()?, folder.clone())),
        None => None,
    };
    let mut progress = Progress::new(config.training.steps, config.training.batch)
        .tracking(track)
        .keeping(kept);
    let result = session::run(&job, device.device, &mut progress);
    let finished = progress.finish();
    if let (true, Err(RunError::Plan(error))) = (args.json, &result) {
        Infeasible::report(error)?;
    }
    if let Err(RunError::RunDir(RunDirError::Finished { path, steps })) = &result {
        note!(
            "{}: all {steps} steps are done, nothing is left to do: `--steps N` asks for more",
            path.display()
        );
        return Ok(());
    }
    let record = result?;
    finished?;
    if let Some(folder) = args.output.as_ref().or(args.resume.as_ref()) {
        draw_timeline(&record, folder)?;
    }

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
            match args.output.as_ref().or(args.resume.as_ref()) {
                Some(folder) => {
                    format!("go on with `rekindle train --resume {}`", folder.display())
                }
                None => "`-o RUN_DIR` keeps a run, so that it can go on later".into(),
            },
        ));
    }
    Ok(())
}

/// Leaves a picture of the traced step beside the run's record.
fn draw_timeline(record: &RunRecord, folder: &Path) -> Outcome {
    let Some(drawn) = plot::timeline::picture(record, plot::theme::Size::Wide) else {
        return Ok(());
    };
    output::file(
        &folder.join("timeline.svg"),
        &drawn.map_err(Failure::other)?,
    )
}

/// What runs the steps: comparing what is recomputed is the modules' executor's.
fn executor(asked: Option<ExecutorKind>, verify: Option<Recheck>) -> Result<ExecutorKind, Failure> {
    let compares = verify.is_some_and(|recheck| recheck != Recheck::Off);
    match (asked, compares) {
        (Some(ExecutorKind::Recorded), true) => Err(Failure::usage(
            "`--executor recorded` runs operations again, not layers, and has nothing for `--verify` to compare: leave one out",
        )),
        (Some(asked), _) => Ok(asked),
        (None, true) => Ok(ExecutorKind::Modules),
        (None, false) => Ok(ExecutorKind::default()),
    }
}

/// Where the run leaves its files.
fn run_dir(args: &TrainArgs) -> Option<RunDir> {
    match (&args.output, &args.resume) {
        (_, Some(folder)) => Some(RunDir::Resume(folder.clone())),
        (Some(folder), None) => Some(RunDir::New(folder.clone())),
        (None, None) => None,
    }
}

/// The device: as typed, else as in the config, else chosen.
pub(super) fn device(
    typed: Option<DeviceChoice>,
    config: &Config,
) -> Result<DeviceChoice, Failure> {
    match (typed, &config.run.device) {
        (Some(device), _) => Ok(device),
        (None, Some(text)) => text.parse().map_err(Failure::usage),
        (None, None) => Ok(DeviceChoice::Auto),
    }
}

/// What is asked for by at most one of segments, a budget and a plan, and a planner.
pub(super) fn request(run: &RunKeys, device: &DeviceInfo) -> Result<ScheduleRequest, Failure> {
    if let Some(path) = &run.plan {
        let (file, order) = PlanFile::read(path)?;
        return Ok(ScheduleRequest::Given {
            order,
            planner: file.planner.clone(),
            budget: file.budget_bytes,
            check: Box::new(move |chain| {
                file.check(chain)
                    .map_err(|failure| failure.report.to_string())
            }),
        });
    }
    let budget = match run.budget {
        Some(size) => Some(bytes_of(size, device)?),
        None => None,
    };
    Ok(ScheduleRequest::Plan(plan_request(run, budget)))
}

/// The plan that is asked for within a budget in bytes.
pub(super) fn plan_request(run: &RunKeys, budget: Option<Bytes>) -> PlanRequest {
    PlanRequest {
        planner: planner(run.planner, run.segments),
        budget,
        segments: run.segments,
        ..PlanRequest::default()
    }
}

/// The planner: the one that was asked for, else the one that the other wishes imply.
pub(super) fn planner(asked: Option<PlannerKind>, segments: Option<usize>) -> PlannerKind {
    asked.unwrap_or(match segments {
        Some(_) => PlannerKind::Uniform,
        None => PlannerKind::Auto,
    })
}

/// A budget in bytes, which the device must have.
pub(super) fn bytes_of(size: Size, device: &DeviceInfo) -> Result<Bytes, Failure> {
    let bytes = size.of(device.total_bytes).map_err(Failure::usage)?;
    match device.total_bytes {
        Some(all) if bytes > all => Err(Failure::usage(format!(
            "a budget of {bytes} is more than the device has, which is {all}"
        ))),
        _ => Ok(bytes),
    }
}
