//! `rekindle max`: the largest batch or depth that fits, by planning.
//!
//! Sizes are searched with steps that are recorded from shapes, without running anything. `--confirm` runs the answer.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use rekindle::{
    meter::Count,
    record::{PlanSummary, Update},
    size::Size,
};
use rekindle_plan::{Bytes, Parts};
use rekindle_train::{
    data::Split,
    device::DeviceInfo,
    fit::{Bounds, ScheduleKind, largest},
    model::spec::MAX_LAYERS,
    record::Ran,
    session::Planned,
    settings::{Accumulate, TrainSettings},
    update::{Updates, updates},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::train;
use crate::{
    args::{Lever, MaxArgs, MeasureArgs, ScheduleArgs, TrainArgs},
    child,
    config::{self, Config, depth::deepest},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    output, stop,
    summary::error,
    table::{self, Cell, Table},
    terminal,
};

/// Format tag of [`MaxRecord`].
pub const MAX_FORMAT: &str = "rekindle-max/3";

/// Step factor and precision of the search: factors of 1.5, to within a percent of the largest size.
const SEARCH: (f64, f64) = (1.5, 1e-2);

/// Maximum size in the search.
const LARGEST: usize = 1 << 32;

/// The longest search, unless one size takes longer: each way to run a size may end after a third of it, the next a third later.
const LONGEST: Duration = Duration::from_secs(24);

/// Time between two lines that say how far the search is.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Steps of a confirming run: the optimizer's state is allocated in the first, so the peak is in the second.
const CONFIRMING_STEPS: usize = 2;

/// Searches, and shows the results.
pub fn run(args: &MaxArgs) -> Outcome {
    check_arguments(args)?;
    let training = args.config.training(args.measure.clone());
    let config = config::load(&training)?;
    let device = config.device().resolve()?;
    let budget = match args.budget {
        Some(size) => train::budget_of(size, &device, &config)?,
        None => {
            let all = device.free_bytes.or(device.total_bytes);
            all.ok_or_else(|| {
                let unknown = device.device;
                Failure::usage(format!(
                    "cannot read the memory size of {unknown}; pass `--budget SIZE`"
                ))
            })?
        }
    };
    let data = config.data_again();
    let varied = match args.vary {
        Lever::Batch => batch(&config, data.as_ref()),
        Lever::Depth => depth(&config)?,
    };
    let subject = Subject {
        training,
        config: &config,
        device: &device,
        varied,
    };
    let largest = subject.largest(budget, args.slowdown)?;
    let answer = largest.iter().find(|one| one.way == ScheduleKind::Plan);
    let answer = answer.map(|one| subject.sized(one.size));
    let within = |training: &TrainArgs| TrainArgs {
        schedule: ScheduleArgs {
            budget: Some(Size::Bytes(budget)),
            ..ScheduleArgs::default()
        },
        ..training.clone()
    };
    let run = answer.as_ref().map(|training| TrainArgs {
        json: false,
        ..within(training)
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
            ..within(training)
        };
        match confirm(&confirming) {
            Ok(ran) => record.confirmed = Some(ran),
            Err(failure) => unconfirmed = Err(failure),
        }
    }
    output::answer(args.answer.json, &record, MaxRecord::text)?;
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

fn batch(config: &Config, data: Option<&Split>) -> Varied {
    let samples = data.map(|data| data.train.len());
    let parts = config.training.parts();
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
    device: &'a DeviceInfo,
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

    /// A size to try: where the number of parts of a batch is open, one that many numbers divide, smaller by 3% at most.
    fn whole(&self, size: usize) -> usize {
        let step = 1 << (size / 32).max(1).ilog2();
        let open = self.config.training.accumulate == Accumulate::Auto && size < self.varied.limit;
        let rounds = open && self.varied.lever == Lever::Batch;
        if rounds { size / step * step } else { size }
    }

    /// The fastest schedule of this kind for a size, if it fits, and in how many parts its batch runs: in as many as `train`
    /// would choose, where that is open. A plan may choose its update, the others are for comparison.
    fn fits(
        &self,
        way: ScheduleKind,
        size: usize,
        budget: Bytes,
        slowdown: f64,
    ) -> Result<Option<(Planned, usize)>, Failure> {
        let mut config = config::load(&self.sized(size))?;
        train::find_parts(&mut config, Some(budget), self.device, |_| None)?;
        let updates = match (way, updates(&config.training, true)) {
            (ScheduleKind::Plan, updates) | (_, updates @ Updates::One(_)) => updates,
            _ => Updates::One(Update::After),
        };
        let step = |update: Update| {
            let settings = TrainSettings {
                update: update.into(),
                ..config.training.clone()
            };
            train::by_shapes(&config, &settings, self.device)
        };
        let plan = way.fits(updates, step, budget, slowdown)?;
        Ok(plan.map(|plan| (plan, config.training.parts())))
    }

    /// The largest sizes of all ways.
    fn largest(&self, budget: Bytes, slowdown: f64) -> Result<Vec<Largest>, Failure> {
        // A batch that is run in equal parts has whole parts.
        let unit = match self.varied.lever {
            Lever::Batch => self.config.training.parts(),
            Lever::Depth => 1,
        };
        let mut all: Vec<Largest> = Vec::new();
        let (began, mut told) = (Instant::now(), Instant::now());
        for (way, part) in ScheduleKind::ALL.into_iter().zip(1..) {
            // Each kind of schedule reaches at least the size of the previous one.
            let first = all.last().map_or(1, |before| before.size);
            let mut found = None;
            let limit = self.varied.limit / unit;
            let goes_on = |known: &Bounds| {
                if told.elapsed() >= LINE_INTERVAL {
                    told = Instant::now();
                    let (way, name) = (way.name(), self.varied.lever.name());
                    let [fits, below] = [known.fits, known.below].map(|units| units * unit);
                    note!("{way}: the largest {name} is at least {fits} and below {below}");
                }
                known.fits == 0 || began.elapsed() <= LONGEST * part / 3
            };
            let fits = |units| {
                let size = self.whole(units * unit);
                let plan = self.fits(way, size, budget, slowdown)?;
                let fits = plan.is_some();
                let plan = plan.map(|(plan, parts)| Largest {
                    way,
                    size,
                    parts,
                    complete: true,
                    at_peak: plan.at_peak().1,
                    plan: plan.summary,
                });
                found = plan.or(found.take());
                Ok::<_, Failure>(fits)
            };
            let complete = largest(limit, first / unit, SEARCH, goes_on, fits)?.complete;
            all.extend(found.map(|found: Largest| Largest { complete, ..found }));
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

/// The largest sizes that fit, counted from shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MaxRecord {
    /// [`MAX_FORMAT`].
    pub format: String,
    /// The config's file.
    pub config: String,
    /// Where it is to run.
    pub device: String,
    /// The largest peak to allow.
    pub budget_bytes: Bytes,
    /// Which bytes the budget bounds.
    pub count: Count,
    /// The longest step that counts as fitting, in plain steps.
    pub slowdown: f64,
    /// What is varied.
    pub varied: Varied,
    /// Samples in each step; `null` where they are what is varied.
    pub batch: Option<usize>,
    /// The largest size for each way to run it, where one fits.
    pub largest: Vec<Largest>,
    /// The command that trains the largest size under a plan; `null` where none fits.
    pub run: Option<String>,
    /// A run of the largest size under a plan; `null` without `--confirm`.
    pub confirmed: Option<Ran>,
}

/// What is varied, between which bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Varied {
    /// What is varied.
    pub lever: Lever,
    /// The config's size.
    pub configured: usize,
    /// The largest size that is tried.
    pub limit: usize,
    /// Why no larger size is tried, in words.
    pub limited_by: String,
}

/// The largest size that fits in one way to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Largest {
    /// How it runs.
    pub way: ScheduleKind,
    /// The size.
    pub size: usize,
    /// Parts that its batch runs in.
    pub parts: usize,
    /// Whether the search came to its end; if not, larger sizes may fit.
    pub complete: bool,
    /// Its plan. Times are those of a nominal machine: of use only in proportion to each other.
    #[serde(flatten)]
    pub plan: PlanSummary,
    /// What is held at the peak.
    pub at_peak: Parts,
}

impl MaxRecord {
    /// The largest size of a way.
    fn of(&self, way: ScheduleKind) -> Option<&Largest> {
        self.largest.iter().find(|largest| largest.way == way)
    }

    /// The verdict, the table, and how to run it.
    fn text(&self) -> String {
        let verdict = terminal::wrapped(&self.verdict(), "");
        let mut text = format!("{verdict}\n\n{}\n", self.table());
        if let Some(limit) = self.limit() {
            let _ = writeln!(text, "\n{}", terminal::wrapped(&limit, ""));
        }
        if let Some(confirmed) = &self.confirmed {
            let (predicted, measured) = (confirmed.plan.predicted_peak, confirmed.measured.peak);
            let fits = measured <= self.budget_bytes;
            let said = format!(
                "It ran: peak predicted {predicted}, measured {measured} ({}), {} {}.",
                error(predicted.0 as f64, measured.0 as f64),
                if fits { "within" } else { "ABOVE" },
                self.budget_bytes,
            );
            let _ = writeln!(text, "\n{}", terminal::wrapped(&said, ""));
        }
        if let Some(run) = &self.run {
            let _ = writeln!(text, "\nRun it:\n  {run}");
        }
        text
    }

    fn verdict(&self) -> String {
        let (name, of) = (self.varied.lever.name(), &self.config);
        let (budget, device) = (self.budget_bytes, &self.device);
        match self.of(ScheduleKind::Plan) {
            Some(plan) => format!(
                "The largest {name} of {of} in {budget} on {device} is {}{}, at most {}x the plain step.",
                plan.size,
                in_parts(plan.parts),
                self.slowdown
            ),
            None => format!("Not even {name} 1 of {of} fits {budget} on {device}."),
        }
    }

    /// What ended the search, where that is not memory.
    fn limit(&self) -> Option<String> {
        let plan = self.of(ScheduleKind::Plan)?;
        let limit = &self.varied.limited_by;
        match plan.size >= self.varied.limit {
            true => Some(format!("The limit is {limit}, not memory.")),
            false => {
                (!plan.complete).then(|| "The search took too long: larger ones may fit.".into())
            }
        }
    }

    fn table(&self) -> Table {
        let size = self.varied.lever.name();
        let header = format!("|{size}|peak|fixed|gradients|activations|step|update");
        let mut table = table::table(&header, 1..7);
        for way in ScheduleKind::ALL {
            match self.of(way) {
                Some(largest) => table.add_row(cells(largest)),
                None => table.add_row([way.name(), "none"]),
            }
        }
        table
    }
}

fn in_parts(parts: usize) -> String {
    match parts {
        1 => String::new(),
        _ => format!(", each batch in {parts} parts"),
    }
}

fn cells(largest: &Largest) -> [Cell; 8] {
    let plan = &largest.plan;
    let way = match (largest.way, plan.segments.as_ref().map(Vec::len)) {
        (ScheduleKind::Segments, Some(segments @ 2..)) => format!("{segments} segments"),
        (way, _) => way.name().to_owned(),
    };
    let (fixed, gradients) = (largest.at_peak.fixed, largest.at_peak.parameter_gradients);
    let update = match plan.update {
        Update::After => "after",
        Update::InBackward => "in backward",
    };
    [
        way.into(),
        largest.size.into(),
        Cell::bytes(plan.predicted_peak),
        Cell::bytes(fixed),
        Cell::bytes(gradients),
        Cell::bytes(plan.predicted_peak - fixed - gradients),
        format!("{:.2}x", plan.slowdown()).into(),
        update.into(),
    ]
}
