//! `rekindle max`: the largest batch or depth that fits, by planning.
//!
//! Sizes are searched with steps that are recorded from shapes, without running anything. `--confirm` runs the answer.

use rekindle::{
    record::{Kernels, Update},
    size::Size,
};
use rekindle_plan::Bytes;
use rekindle_train::{
    Estimated,
    device::DeviceId,
    fit::{ScheduleKind, largest},
    kernels,
    model::spec::MAX_LAYERS,
    record::Ran,
    session::MeasuredStep,
    update::{Updates, updates},
};

use super::train;
use crate::{
    args::{Lever, MaxArgs, MeasureArgs, ScheduleArgs, TrainArgs},
    child,
    config::{self, Config, depth::deepest},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    max::{Largest, MAX_FORMAT, MaxRecord, Varied},
    output, stop,
};

/// Step factor and precision of the search: factors of 1.5, to within a percent of the largest size.
const FACTOR: f64 = 1.5;
const PRECISION: f64 = 1e-2;

/// Maximum size in the search.
const LARGEST: usize = 1 << 32;

/// Steps of a confirming run: the optimizer's state is allocated in the first, so the peak is in the second.
const CONFIRMING_STEPS: usize = 2;

/// Searches, and shows the results.
pub fn run(args: &MaxArgs) -> Outcome {
    check_arguments(args)?;
    let training = args.config.training(args.measure.clone());
    let config = config::load(&training)?;
    let device = config.device().resolve()?;
    let (asked, budget) = match args.budget {
        Some(size) => (size, train::bytes_of(size, &device)?),
        None => {
            let all = device.free_bytes.or(device.total_bytes);
            let all = all.ok_or_else(|| {
                let unknown = device.device;
                Failure::usage(format!(
                    "cannot read the memory size of {unknown}; pass `--budget SIZE`"
                ))
            })?;
            (Size::Bytes(all), all)
        }
    };
    let varied = match args.vary {
        Lever::Batch => batch(&config),
        Lever::Depth => depth(&config)?,
    };
    let subject = Subject {
        training,
        config: &config,
        kernels: kernels(device.device),
        // On the CPU, a process of this program besides the training holds about as much as this process.
        process_bytes: match device.device {
            DeviceId::Cpu => Bytes(rekindle_alloc::in_use() as u64),
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Bytes::ZERO,
        },
        varied,
    };
    let largest = subject.largest(budget, args.slowdown)?;
    let answer = largest.iter().find(|one| one.way == ScheduleKind::Plan);
    let answer = answer.map(|one| subject.sized(one.size));
    let within = |training: &TrainArgs, budget| TrainArgs {
        schedule: ScheduleArgs {
            budget: Some(budget),
            ..ScheduleArgs::default()
        },
        ..training.clone()
    };
    let run = answer.as_ref().map(|training| TrainArgs {
        json: false,
        ..within(training, asked)
    });
    let mut record = MaxRecord {
        format: MAX_FORMAT.into(),
        config: args.config.config.display().to_string(),
        device: device.device.to_string(),
        budget_bytes: budget,
        count: config.count(),
        slowdown: args.slowdown,
        varied: subject.varied,
        batch: (args.vary != Lever::Batch).then_some(config.training.batch),
        largest,
        run: run.map(|run| run.typed()).transpose()?,
        confirmed: None,
    };
    let mut unconfirmed = Ok(());
    if let (Some(training), true) = (&answer, args.confirm) {
        let measure = MeasureArgs {
            device: Some(DeviceChoice::One(device.device)),
            ..args.measure.clone()
        };
        let confirming = TrainArgs {
            measure,
            steps: Some(CONFIRMING_STEPS),
            ..within(training, Size::Bytes(budget))
        };
        match confirm(&confirming) {
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

fn batch(config: &Config) -> Varied {
    let samples = config.open_data().ok().map(|data| data.train.len());
    let parts = config.training.accumulate;
    Varied {
        lever: Lever::Batch,
        configured: config.training.batch,
        limit: samples.unwrap_or(LARGEST) / parts * parts,
        limited_by: match samples {
            Some(samples) => format!("the data set ({samples} training samples)"),
            None => "the end of the search".into(),
        },
    }
}

fn depth(config: &Config) -> Result<Varied, Failure> {
    let Some(group) = deepest(&config.written) else {
        let message = "the depth cannot be varied: no group in `layers` has a `repeat`";
        return Err(Failure::usage(message).help(
            "write the layers that repeat as a group: `{ repeat = { times = 4, layers = [...] } }`",
        ));
    };
    Ok(Varied {
        lever: Lever::Depth,
        configured: group.times,
        limit: (MAX_LAYERS.saturating_sub(group.others) / group.turn.max(1)).max(1),
        limited_by: format!("the end of the search ({MAX_LAYERS} layers)"),
    })
}

/// A config, and what is varied of it.
struct Subject<'a> {
    training: TrainArgs,
    config: &'a Config,
    kernels: Kernels,
    process_bytes: Bytes,
    varied: Varied,
}

impl Subject<'_> {
    /// The same training with this size.
    fn sized(&self, size: usize) -> TrainArgs {
        let mut training = self.training.clone();
        match self.varied.lever {
            Lever::Batch => training.replace.batch = Some(size),
            Lever::Depth => training.replace.depth = Some(size),
        }
        training
    }

    /// The step of a size, from shapes alone, with one of the updates.
    fn counted(&self, size: usize, update: Update) -> Result<MeasuredStep, Failure> {
        let config = config::load(&self.sized(size))?;
        let mut settings = config.training.clone();
        settings.update = update.into();
        let estimated = Estimated {
            held: self.process_bytes,
            ..config.estimated(&settings, self.kernels)
        };
        let estimate = estimated.estimate()?;
        Ok(MeasuredStep::estimated(&estimate, &config.model, &settings))
    }

    /// The largest sizes of all ways: a plan may choose its update, the others are for comparison.
    fn largest(&self, budget: Bytes, slowdown: f64) -> Result<Vec<Largest>, Failure> {
        let asked = updates(&self.config.training, true);
        // A batch that is run in equal parts has whole parts.
        let unit = match self.varied.lever {
            Lever::Batch => self.config.training.accumulate,
            Lever::Depth => 1,
        };
        let mut all: Vec<Largest> = Vec::new();
        for way in ScheduleKind::ALL {
            let updates = match (way, asked) {
                (ScheduleKind::Plan, updates) | (_, updates @ Updates::One(_)) => updates,
                _ => Updates::One(Update::After),
            };
            // Each kind of schedule reaches at least the size of the previous one.
            let first = all.last().map_or(1, |before| before.size);
            let mut found = None;
            let limit = self.varied.limit / unit;
            largest(limit, first / unit, FACTOR, PRECISION, |units| {
                let size = units * unit;
                let step = |update| self.counted(size, update);
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
}

/// Trains for a few steps in another process.
fn confirm(training: &TrainArgs) -> Result<Ran, Failure> {
    stop::in_order("stopping");
    note!("running the answer for {CONFIRMING_STEPS} steps");
    child::ask("train", training).map_err(|failure| {
        let message = format!("the answer was not confirmed: {}", failure.message);
        Failure::coded(failure.code, message)
    })
}
