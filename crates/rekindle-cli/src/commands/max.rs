//! `rekindle max`: the largest batch or depth that fits, by planning.
//!
//! Sizes are searched with steps that are recorded from shapes, without running anything. `--confirm` runs the answer.

use rekindle::{record::Update, size::Size};
use rekindle_plan::Bytes;
use rekindle_train::{
    device::DeviceInfo,
    fit::{ScheduleKind, largest},
    record::Ran,
    update::Updates,
};

use super::train;
use crate::{
    args::{ConfigArgs, Lever, MaxArgs, MeasureArgs, ScheduleArgs, TrainArgs, words},
    child,
    config::{self, Overrides},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    max::{Largest, MAX_FORMAT, MaxRecord, subject::Subject},
    output, stop,
};

/// Step factor and precision of the search: factors of 1.5, to within a percent of the largest size.
const FACTOR: f64 = 1.5;
const PRECISION: f64 = 1e-2;

/// Steps of a confirming run: the optimizer's state is allocated in the first, so the peak is in the second.
const CONFIRMING_STEPS: usize = 2;

/// Searches, and shows the results.
pub fn run(args: &MaxArgs) -> Outcome {
    check_arguments(args)?;
    let overrides = Overrides::new(&args.config.replace, &args.measure);
    let config = config::load(&args.config.config, &overrides)?;
    let device = config.device().resolve()?;
    let (asked, budget) = match args.budget {
        Some(size) => (size, train::bytes_of(size, &device)?),
        None => {
            let budget = all_there_is(&device)?;
            (Size::Bytes(budget), budget)
        }
    };
    let samples = match args.vary {
        Lever::Batch => config.open_data().ok().map(|data| data.train.len()),
        Lever::Depth => None,
    };
    let subject = Subject::new(&config, args.vary, device.device, samples)?;
    let largest = all(&subject, budget, args.slowdown)?;
    let answer = largest.iter().find(|one| one.way == ScheduleKind::Plan);
    let answer = answer.map(|one| subject.sized(&args.config, one.size));
    let training = |config: &ConfigArgs, budget, measure| TrainArgs {
        schedule: ScheduleArgs {
            budget: Some(budget),
            ..ScheduleArgs::default()
        },
        ..config.training(measure)
    };
    let run = answer.as_ref().map(|config| {
        let run = training(config, asked, args.measure.clone());
        TrainArgs { json: false, ..run }.typed()
    });
    let mut record = MaxRecord {
        format: MAX_FORMAT.into(),
        config: args.config.config.display().to_string(),
        device: device.device.to_string(),
        budget_bytes: budget,
        count: config.count(),
        slowdown: args.slowdown,
        varied: subject.varied.clone(),
        batch: (args.vary != Lever::Batch).then_some(config.training.batch),
        largest,
        run: run.transpose()?,
        confirmed: None,
    };
    let mut unconfirmed = Ok(());
    if let (Some(config), true) = (&answer, args.confirm) {
        let measure = MeasureArgs {
            device: Some(DeviceChoice::One(device.device)),
            ..args.measure.clone()
        };
        match confirm(&training(config, Size::Bytes(budget), measure)) {
            Ok(ran) => record.confirmed = Some(ran),
            Err(failure) => unconfirmed = Err(failure),
        }
    }
    if args.answer.json {
        output::json(&record)?;
    } else {
        output::text(&record.text())?;
    }
    unconfirmed?;
    match answer {
        Some(_) => Ok(()),
        None => Err(Failure::coded(
            exit::NO_PLAN,
            format!(
                "{} 1 does not fit in {budget} under any plan",
                args.vary.name()
            ),
        )),
    }
}

/// Fails if an argument sets the size that is searched for.
fn check_arguments(args: &MaxArgs) -> Outcome {
    let given = match args.vary {
        Lever::Batch => args.config.replace.batch,
        Lever::Depth => args.config.replace.depth,
    };
    let name = args.vary.name();
    if given.is_some() {
        return Err(Failure::usage(format!(
            "`--vary {name}` finds the {name}: leave `--{name}` out"
        )));
    }
    if args.slowdown.is_nan() || args.slowdown < 1.0 {
        return Err(Failure::usage(format!(
            "`--slowdown {}` is below 1: no step is faster than the plain one",
            args.slowdown
        )));
    }
    Ok(())
}

fn all_there_is(device: &DeviceInfo) -> Result<Bytes, Failure> {
    let bytes = device.free_bytes.or(device.total_bytes);
    bytes.ok_or_else(|| {
        Failure::usage(format!(
            "cannot read the memory size of {}; pass `--budget SIZE`",
            device.device
        ))
    })
}

/// The largest sizes of all ways: a plan may choose its update, the others are for comparison.
fn all(subject: &Subject<'_>, budget: Bytes, slowdown: f64) -> Result<Vec<Largest>, Failure> {
    let unit = subject.unit();
    let mut all: Vec<Largest> = Vec::new();
    for way in ScheduleKind::ALL {
        let updates = match (way, subject.updates()) {
            (ScheduleKind::Plan, updates) | (_, updates @ Updates::One(_)) => updates,
            _ => Updates::One(Update::After),
        };
        // Each kind of schedule reaches at least the size of the previous one.
        let first = all.last().map_or(1, |before| before.size);
        let mut found = None;
        let limit = subject.varied.limit / unit;
        largest(limit, first / unit, FACTOR, PRECISION, |units| {
            let size = units * unit;
            let step = |update| subject.counted(size, update);
            let plan = way.fits(updates, step, budget, slowdown)?;
            let fits = plan.is_some();
            let plan = plan.map(|plan| Largest {
                way,
                size,
                at_peak: plan.at_peak().1,
                plan: plan.summary,
            });
            found = plan.or(found.take());
            Ok::<_, Failure>(fits)
        })?;
        all.extend(found);
    }
    Ok(all)
}

/// Trains for a few steps in another process.
fn confirm(training: &TrainArgs) -> Result<Ran, Failure> {
    stop::in_order("stopping");
    note!("running the answer for {CONFIRMING_STEPS} steps");
    let training = TrainArgs {
        steps: Some(CONFIRMING_STEPS),
        ..training.clone()
    };
    let answer = child::ask(&words("train", &training)?).map_err(|failure| {
        let message = format!("the answer was not confirmed: {}", failure.report);
        Failure::coded(failure.code, message)
    })?;
    serde_json::from_str(&answer).map_err(Failure::other)
}
