//! `rekindle train`: from a config to a trained model and a comparison of predictions with measurements.

use std::sync::Once;

use rekindle::size::Size;
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    Estimated,
    data::Split,
    device::{DeviceId, DeviceInfo, probe},
    fit::parts,
    kernels,
    model::spec::has_batch_norm,
    ranks::Ranks,
    record::{Measured, RunRecord},
    run_dir::RunDir,
    session::{self, Event, Job, KEEP_SNAPSHOTS, MeasuredStep, RunError, ScheduleRequest},
    settings::{Accumulate, TrainSettings},
};
use serde::Deserialize;

use super::plan_graph::plan_elsewhere;
use crate::{
    args::{MeasureArgs, ScheduleArgs, TrainArgs},
    child,
    config::{self, Config, RunKeys},
    device::{DeviceChoice, OffloadChoice},
    exit,
    failure::{Failure, Outcome},
    input, launched, output,
    plot::timeline::{self, TIMELINE},
    progress::Progress,
    ranks,
    started::{CONFIG, Started, check_new, config_of},
    summary,
    sweep::Point,
    table::thousands,
    track::TrackFile,
};

/// Trains.
pub fn run(args: TrainArgs) -> Outcome {
    let ranks = ranks::world()?;
    let outcome = train(args, &ranks);
    ranks::end(ranks, outcome)
}

/// A config with what is typed beside it, its data, the device, and where the schedule comes from.
pub(super) struct Asked {
    pub(super) config: Config,
    pub(super) data: Split,
    pub(super) device: DeviceInfo,
    pub(super) schedule: ScheduleRequest,
}

/// What a rank is asked for.
pub(super) fn asked(args: &TrainArgs) -> Result<Asked, Failure> {
    let mut config = config::load(args)?;
    let local = launched::local();
    let device = config.device().of_rank(local)?;
    let device = device.resolve()?.shared_by(local.ranks);
    // What the process holds counts from here on.
    let data = config.open_data()?;
    let schedule = request(&config, &device)?;
    if let ScheduleRequest::Plan(request) = &schedule {
        let elsewhere = |budget| parts_elsewhere(args, budget, &device);
        find_parts(&mut config, request.budget, &device, elsewhere)?;
    }
    Ok(Asked {
        config,
        data,
        device,
        schedule,
    })
}

/// What a training needs.
struct Opened {
    args: TrainArgs,
    /// The config's file, as it was named.
    name: String,
    asked: Asked,
    /// Host memory for tensors.
    host: Option<Bytes>,
    /// The file for its passes.
    track: Option<TrackFile>,
}

fn opened(mut args: TrainArgs, ranks: &Ranks) -> Result<Opened, Failure> {
    let kept = args.resume.clone().filter(|_| args.config.is_none());
    let name = match kept {
        Some(folder) => {
            let started = Started::read(&folder)?;
            args.config = Some(config_of(&folder)?);
            args.weights = started.weights;
            started.config
        }
        None => args.config_path().display().to_string(),
    };
    let asked = asked(&args)?;
    let speaks = ranks.rank() == 0;
    let output = args.output.as_deref().filter(|_| speaks);
    output.map_or(Ok(()), check_new)?;
    let track = args.track.as_deref().filter(|_| speaks);
    output::check_spared(track, [args.config_path()])?;
    let track = track.map(TrackFile::create).transpose()?;
    let run = &asked.config.run;
    let host = match run.budget.is_some() || run.plan.is_some() {
        true => host(run, &asked.device)?,
        false => None,
    };
    Ok(Opened {
        args,
        name,
        asked,
        host,
        track,
    })
}

fn train(args: TrainArgs, ranks: &Ranks) -> Outcome {
    let opened = ranks::settled(ranks, opened(args, ranks))?;
    let (args, name, mut track) = (&opened.args, &opened.name, opened.track);
    let Asked {
        config,
        data,
        device,
        schedule,
    } = opened.asked;
    let plain = |steps| plain_steps(args, steps);
    let on_cpu = device.device == DeviceId::Cpu;
    let speaks = ranks.rank() == 0;
    let resumed = args.resume.clone().map(RunDir::Resume);
    let new = args.output.clone().map(RunDir::New);
    let job = Job {
        name,
        device: Some(&device),
        eval: data.eval.as_deref().filter(|_| !args.no_eval),
        compare: args.compare,
        plain_elsewhere: (on_cpu && ranks.is_alone()).then_some(&plain),
        track: track.is_some(),
        count: config.count(),
        host: opened.host,
        planner: on_cpu.then_some(plan_elsewhere),
        run_dir: resumed.or(new).filter(|_| speaks),
        snapshot_every: config.run.snapshot_every.unwrap_or_default(),
        keep_snapshots: config.run.keep_snapshots.unwrap_or(KEEP_SNAPSHOTS),
        weights: args.weights.clone().filter(|_| speaks),
        ranks: ranks.clone(),
        ..Job::new(&config.model, &*data.train, &config.training, schedule)
    };
    let budget = match (config.run.budget, job.budget()) {
        (Some(typed), Some(bytes)) => {
            let share = match typed {
                Size::Bytes(_) => String::new(),
                share => format!("{share}: "),
            };
            format!(", budget {share}{bytes} ({} bytes)", thousands(bytes.0))
        }
        _ => String::new(),
    };
    let shared = match ranks.count() {
        1 => String::new(),
        count => format!(", {count} ranks"),
    };
    note!(
        "{name} on {} ({}){shared}{budget}",
        device.device,
        device.name
    );
    let folder = args.output.as_ref().or(args.resume.as_ref());
    // How the run is started, kept for `--resume` once there is a plan.
    let started = match args.output.as_ref().filter(|_| speaks) {
        Some(folder) => {
            let started = Started::now(name.clone(), args.weights.as_deref())?;
            let config = config.whole(&started.directory)?;
            Some((folder, started, config))
        }
        None => None,
    };
    let mut progress = Progress::new(config.training.steps, config.training.batch);
    let mut written = Ok(());
    let result = session::run(&job, device.device, &mut |event| {
        let own = match (&event, &started, &mut track) {
            // A config without the command line beside it is no run's.
            (Event::Planned { .. }, Some((folder, started, config)), _) => started
                .keep(folder)
                .and_then(|()| output::file(&folder.join(CONFIG), config)),
            (Event::Tracked(passes), _, Some(track)) => track.step(passes),
            _ => Ok(()),
        };
        if written.is_ok() {
            written = own;
        }
        progress.tell(event);
    });
    if let (Ok(()), Some(track)) = (&written, &track) {
        note!(
            "wrote {} (the tensors of each pass in the first steps)",
            track.path.display()
        );
    }
    let finished = progress.finish().and(written);
    if let Err(finished @ RunError::Finished { .. }) = &result {
        note!("{finished}");
        return Ok(());
    }
    let record = result?;
    let drawn = match (folder, timeline::picture(&record)) {
        (Some(folder), Some(picture)) if speaks => output::file(&folder.join(TIMELINE), &picture),
        _ => Ok(()),
    };
    if speaks {
        let folder = folder.map(|folder| folder.as_path());
        let closing = |record: &RunRecord| format!("\n{}\n", summary::closing(record, folder));
        output::answer(args.json, &record, closing)?;
    }
    if record.interrupted {
        let (done, asked) = (record.steps, config.training.steps);
        let message = format!("interrupted after step {done} of {asked}");
        return Err(
            Failure::coded(exit::INTERRUPTED, message).help(match folder {
                Some(folder) => format!(
                    "continue with `rekindle train --resume {}`",
                    folder.display()
                ),
                None => "`-o RUN_DIR` saves a run, so that it can continue later".into(),
            }),
        );
    }
    finished.and(drawn)
}

/// Runs so many plain steps of the same training in another process, so that its peak is separate.
fn plain_steps(args: &TrainArgs, steps: usize) -> Option<Measured> {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| note!("comparing in turns with plain steps in other processes"));
    let measure = MeasureArgs {
        device: Some(DeviceChoice::One(DeviceId::Cpu)),
        ..args.measure.clone()
    };
    let plain = Point::Plain.of(TrainArgs {
        config: args.config.clone(),
        replace: args.replace.clone(),
        measure,
        steps: Some(steps),
        no_eval: true,
        json: true,
        ..TrainArgs::default()
    });
    child::ask("train", &plain).ok()
}

/// The schedule request, from at most one of segments, a budget and a plan, and a planner.
pub(super) fn request(config: &Config, device: &DeviceInfo) -> Result<ScheduleRequest, Failure> {
    let run = &config.run;
    if let Some(path) = &run.plan {
        return Ok(ScheduleRequest::Given(Box::new(input::plan(path)?)));
    }
    Ok(ScheduleRequest::Plan(Request::of(
        Planner::asked(run.planner, run.segments).map_err(Failure::usage)?,
        run.budget
            .map(|size| budget_of(size, device, config))
            .transpose()?,
    )))
}

/// A config's budget in bytes; fails if the device has less.
pub(super) fn budget_of(
    size: Size,
    device: &DeviceInfo,
    config: &Config,
) -> Result<Bytes, Failure> {
    let bytes = bytes_of(size, Some(device), || plain_peak(config, device))?;
    within_device(bytes, device)
}

/// A size in bytes. Of the plain step's peak, `plain`, it may be a share.
pub(super) fn bytes_of(
    size: Size,
    device: Option<&DeviceInfo>,
    plain: impl FnOnce() -> Result<Bytes, Failure>,
) -> Result<Bytes, Failure> {
    let plain = match size {
        Size::Percent(_) => Some(plain()?),
        _ => None,
    };
    size.of(plain, device.and_then(DeviceInfo::available_bytes))
        .map_err(Failure::usage)
}

/// A budget; fails if the device has less.
pub(super) fn within_device(budget: Bytes, device: &DeviceInfo) -> Result<Bytes, Failure> {
    match device.available_bytes() {
        Some(all) if budget > all => {
            Err(Failure::coded(exit::NO_PLAN, too_much(budget, all, device))
                .help("`--budget 80%-of-device` leaves some of it to others"))
        }
        _ => Ok(budget),
    }
}

/// The plain step's peak by its shapes, of a rank's part of the batch.
pub(super) fn plain_peak(config: &Config, device: &DeviceInfo) -> Result<Bytes, Failure> {
    let ranks = launched::launched().map_or(1, |launched| launched.ranks);
    let part = TrainSettings {
        batch: config.training.batch.div_ceil(ranks),
        ..config.training.clone()
    };
    Ok(estimated(config, &part, device).estimate()?.plain_peak)
}

/// A step of the config's model, with what a process of this program takes besides: about as much as this one.
pub(super) fn estimated<'a>(
    config: &'a Config,
    settings: &'a TrainSettings,
    device: &DeviceInfo,
) -> Estimated<'a> {
    Estimated {
        process: Some(Bytes(rekindle_alloc::in_use() as u64)),
        ..config.estimated(settings, kernels(device.device))
    }
}

/// The same step by its shapes, to be planned.
pub(super) fn by_shapes(
    config: &Config,
    settings: &TrainSettings,
    device: &DeviceInfo,
) -> Result<MeasuredStep, Failure> {
    let estimate = estimated(config, settings, device).estimate()?;
    Ok(MeasuredStep::estimated(&estimate, &config.model, settings))
}

/// Finds in how many parts a batch runs within a budget, where the config leaves that open: `elsewhere`, if that gives an
/// answer.
pub(super) fn find_parts(
    config: &mut Config,
    budget: Option<Bytes>,
    device: &DeviceInfo,
    elsewhere: impl FnOnce(Bytes) -> Option<usize>,
) -> Outcome {
    let training = &config.training;
    if training.accumulate != Accumulate::Auto {
        return Ok(());
    }
    let refused = |why| {
        let message = format!("`accumulate = \"auto\"` is not for {why}");
        Err(Failure::usage(message).help("set a number of parts: `--accumulate 4`"))
    };
    if has_batch_norm(&config.model.layers) {
        return refused("batch norm, whose statistics would be each part's");
    }
    if launched::launched().is_some() {
        return refused("several ranks, each of which has a part of the batch already");
    }
    let parts = match budget {
        None => 1,
        Some(budget) => match elsewhere(budget) {
            Some(parts) => parts,
            None => parts(training, budget, |one| by_shapes(config, one, device))?,
        },
    };
    config.training.accumulate = Accumulate::Parts(parts);
    Ok(())
}

/// The number of parts that an estimate in another process finds: plans take memory, which would count as the run's.
fn parts_elsewhere(args: &TrainArgs, budget: Bytes, device: &DeviceInfo) -> Option<usize> {
    #[derive(Deserialize)]
    struct Found {
        batch: usize,
        micro_batch: usize,
    }
    let measure = MeasureArgs {
        device: Some(DeviceChoice::One(device.device)),
        ..MeasureArgs::default()
    };
    let estimate = TrainArgs {
        config: args.config.clone(),
        replace: args.replace.clone(),
        measure,
        schedule: ScheduleArgs {
            budget: Some(Size::Bytes(budget)),
            ..ScheduleArgs::default()
        },
        json: true,
        ..TrainArgs::default()
    };
    let Found { batch, micro_batch } = child::ask("estimate", &estimate).ok()?;
    batch.checked_div(micro_batch)
}

/// Maximum host memory for offloaded tensors; `None` if tensors stay on the device.
pub(super) fn host(run: &RunKeys, device: &DeviceInfo) -> Result<Option<Bytes>, Failure> {
    let never = run.offload == Some(OffloadChoice::Never);
    if device.device == DeviceId::Cpu || never {
        return Ok(None);
    }
    let host = probe(DeviceId::Cpu).ok();
    if let Some(size) = run.host_budget {
        let total = host.and_then(|host| host.total_bytes);
        return size.of(total, total).map(Some).map_err(Failure::usage);
    }
    let free = host.and_then(|host| host.free_bytes);
    Ok(free.map(|free| free - Bytes(free.0 / 8).max(LEFT_TO_HOST)))
}

/// Minimum host memory that is left free.
const LEFT_TO_HOST: Bytes = Bytes(1 << 30);

fn too_much(bytes: Bytes, all: Bytes, device: &DeviceInfo) -> String {
    let DeviceId::Cuda(number) = device.device else {
        return format!("a budget of {bytes} is more than the device has, which is {all}");
    };
    let mut text = format!(
        "a budget of {bytes} is more than is free on {}: {all}",
        device.device
    );
    if let Some(total) = device.total_bytes {
        text.push_str(&format!(" of {total}"));
    }
    let others = rekindle_train::device::gpu_processes(number);
    if !others.is_empty() {
        text.push_str(&format!(". The rest is held by {}", others.join(", ")));
    }
    text
}
