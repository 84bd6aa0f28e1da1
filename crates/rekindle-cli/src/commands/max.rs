//! `rekindle max`: the largest batch or depth that fits, by planning.
//!
//! Sizes are searched with steps that are recorded from shapes, without running anything. If the result is small enough
//! to be measured quickly, nearby sizes are profiled once each in separate processes, and their plans determine the
//! result.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use rekindle::{record::Update, size::Size};
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    device::{DeviceId, DeviceInfo},
    fit::{ScheduleKind, largest},
    record::RunRecord,
    session::{MeasuredStep, Planned},
    settings::TrainSettings,
    update::{Updates, in_backward_refused},
};

use super::train;
use crate::{
    args::{Lever, MaxArgs, MeasureArgs, ProfileArgs, ScheduleArgs, TrainArgs, words},
    child,
    config::{self, Overrides},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    max::{
        record::{Confirmed, Difference, Largest, MAX_FORMAT, MaxRecord},
        subject::Subject,
    },
    output, stop,
};

/// Above this many bytes nothing is measured by default: initialising the parameters alone would take long.
const MEASURED_BYTES: Bytes = Bytes(2 << 30);

/// Above this many seconds, estimated for two cores, nothing is measured by default.
const MEASURED_SECONDS: f64 = 60.0;

/// Cost of the profiles for one kind of schedule, in plain steps.
const STEPS_TO_PROFILE: f64 = 8.0;
const SIZES_TO_PROFILE: f64 = 4.0;

/// Step factor and precision of the search by shapes: factors of 1.5, to within a percent of the largest size.
const COUNTED: (f64, f64) = (1.5, 1e-2);
/// The same for measured sizes: in small steps from the result by shapes, to within two percent.
const MEASURED: (f64, f64) = (1.15, 2e-2);
/// The same for sizes that are only shown for comparison.
const ROUGH: (f64, f64) = (1.5, 5e-2);

/// Share of a budget that is left free when sizes are measured: the other memory of a process varies a little from
/// process to process. Observed: 0.04% of 40 MiB.
const LEFT: f64 = 2e-3;

/// Steps of a confirming run: the optimizer's state is allocated in the first, so the peak is in the second.
const CONFIRMING_STEPS: usize = 2;

/// Searches, and shows the results.
pub fn run(args: &MaxArgs) -> Outcome {
    check_arguments(args)?;
    let config = config::load(&args.config.config, &Overrides::from(&args.config.replace))?;
    let device = train::device(args.measure.device, &config).resolve()?;
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
    let measurer = Measurer {
        args,
        device: device.device,
        subject: &subject,
        profiled: RefCell::default(),
    };

    let mut record = MaxRecord {
        format: MAX_FORMAT.into(),
        config: args.config.config.display().to_string(),
        device: device.device.to_string(),
        budget_bytes: budget,
        budget_asked: args.budget.is_some(),
        count: config.count(args.measure.count),
        slowdown: args.slowdown,
        varied: subject.varied.clone(),
        batch: (args.vary != Lever::Batch).then_some(config.training.batch),
        measured: false,
        not_measured_because: None,
        largest: Vec::new(),
        with_other_update: None,
        lever: Difference::NothingFits,
        run: None,
        confirmed: None,
    };
    let search = Search {
        subject: &subject,
        budget,
        slowdown: args.slowdown,
    };
    record.largest = search.counted()?;
    let plan = record.of(ScheduleKind::Plan);
    if let Some(other) = other_update(&config.training, subject.updates(), plan) {
        let first = plan.map_or(1, |answer| answer.size);
        let found =
            search.largest_counted(ScheduleKind::Plan, first, ROUGH, Updates::One(other))?;
        record.with_other_update = found.map(|(size, _)| size);
    }
    record.not_measured_because = search.reason_not_to_measure(args, &record)?;
    stop::in_order("stopping");
    if record.not_measured_because.is_none() && !record.largest.is_empty() {
        match search.measured(&measurer, &record) {
            Ok(largest) => {
                record.largest = largest;
                record.measured = true;
            }
            Err(failure) if failure.code == exit::INTERRUPTED => return Err(failure),
            Err(failure) => record.not_measured_because = Some(failure.report.to_string()),
        }
    }
    record.judge();
    let answer = record.of(ScheduleKind::Plan).map(|answer| answer.size);
    if let Some(size) = answer {
        let config = subject.sized(&args.config, size);
        let run = TrainArgs {
            schedule: ScheduleArgs {
                budget: Some(asked),
                ..ScheduleArgs::default()
            },
            json: false,
            ..config.training(args.measure.clone())
        };
        record.run = Some(run.typed()?);
    }
    let confirmed = match answer {
        Some(size) if args.confirm => measurer.confirm(size, budget).map(Some),
        _ => Ok(None),
    };
    let unconfirmed = match confirmed {
        Ok(confirmed) => {
            record.confirmed = confirmed;
            None
        }
        Err(failure) => Some(failure),
    };

    if args.answer.json {
        output::json(&record)?;
    } else {
        output::text(&record.text())?;
    }
    if let Some(failure) = unconfirmed {
        return Err(failure);
    }
    match record.lever {
        Difference::NothingFits => Err(Failure {
            code: exit::NO_PLAN,
            report: miette::miette!(
                "{} 1 does not fit in {budget} under any plan",
                args.vary.name()
            ),
        }),
        _ => Ok(()),
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

/// The other update, if it is worth a comparison with the plan's.
fn other_update(
    settings: &TrainSettings,
    updates: Updates,
    plan: Option<&Largest>,
) -> Option<Update> {
    match updates {
        Updates::One(Update::After) => {
            let refused = in_backward_refused(settings);
            refused.is_none().then_some(Update::InBackward)
        }
        Updates::One(Update::InBackward) => None,
        Updates::ToFit | Updates::ToFitOrFaster => plan
            .filter(|plan| plan.update == Update::InBackward)
            .map(|_| Update::After),
    }
}

fn all_there_is(device: &DeviceInfo) -> Result<Bytes, Failure> {
    let bytes = device.free_bytes.or(device.total_bytes);
    bytes.ok_or_else(|| {
        Failure::usage(format!(
            "nothing says how much memory {} has: give a `--budget`",
            device.device
        ))
    })
}

/// A size, its plan, and when that updates parameters.
type Found = (usize, (Planned, Update));

struct Search<'a> {
    subject: &'a Subject<'a>,
    budget: Bytes,
    slowdown: f64,
}

impl Search<'_> {
    /// The updates of a kind of schedule: a plan may choose, the others are for comparison.
    fn updates(&self, way: ScheduleKind) -> Updates {
        match (way, self.subject.updates()) {
            (ScheduleKind::Plan, updates) | (_, updates @ Updates::One(_)) => updates,
            _ => Updates::One(Update::After),
        }
    }

    /// The largest size whose counted stages fit this way.
    fn largest_counted(
        &self,
        way: ScheduleKind,
        first: usize,
        (factor, precision): (f64, f64),
        updates: Updates,
    ) -> Result<Option<Found>, Failure> {
        let unit = self.subject.unit();
        let mut found = None;
        let limit = self.subject.varied.limit / unit;
        largest(limit, first / unit, factor, precision, |units| {
            let step = |update| {
                let step = self.subject.counted(units * unit, update)?;
                Ok::<_, Failure>(Rc::new(step))
            };
            let plan = way.fits(updates, step, self.budget, (self.slowdown, true))?;
            let fits = plan.is_some();
            found = plan.map(|plan| (units * unit, plan)).or(found.take());
            Ok::<_, Failure>(fits)
        })?;
        Ok(found)
    }

    /// The largest sizes of all ways, as counted.
    fn counted(&self) -> Result<Vec<Largest>, Failure> {
        let mut all: Vec<Largest> = Vec::new();
        for way in ScheduleKind::ALL {
            // Each kind of schedule reaches at least the size of the previous one.
            let first = all.last().map_or(1, |before| before.size);
            let found = self.largest_counted(way, first, COUNTED, self.updates(way))?;
            all.extend(found.map(|(size, plan)| Largest::new(way, size, &plan)));
        }
        Ok(all)
    }

    /// Why the results by shapes are not replaced by measured ones, if so.
    fn reason_not_to_measure(
        &self,
        args: &MaxArgs,
        record: &MaxRecord,
    ) -> Result<Option<String>, Failure> {
        if args.counted {
            return Ok(Some("`--counted` was given".into()));
        }
        let Some(answer) = record.largest.iter().max_by_key(|largest| largest.size) else {
            return Ok(None);
        };
        let plain = self.subject.counted(answer.size, answer.update)?;
        let plain = plain.plan(&Request {
            planner: Planner::None,
            ..Request::default()
        })?;
        if plain.peak > MEASURED_BYTES {
            return Ok(Some(format!(
                "the plain step of the largest model takes {}, and steps of more than {MEASURED_BYTES} are not run; `--confirm` \
                 trains it within the budget",
                plain.peak
            )));
        }
        let seconds =
            plain.step.0 * STEPS_TO_PROFILE * SIZES_TO_PROFILE * ScheduleKind::ALL.len() as f64;
        Ok((seconds > MEASURED_SECONDS).then(|| {
            format!("that would take about {seconds:.0} s on two cores; `--confirm` runs it")
        }))
    }

    /// The largest sizes of all ways that were counted to have one, as measured.
    fn measured(
        &self,
        measurer: &Measurer<'_>,
        record: &MaxRecord,
    ) -> Result<Vec<Largest>, Failure> {
        let unit = self.subject.unit();
        let room = Bytes((self.budget.0 as f64 * (1.0 - LEFT)) as u64);
        let limit = self.subject.varied.limit / unit;
        let mut all = Vec::new();
        for Largest { way, size, .. } in &record.largest {
            let mut found = None;
            largest(limit, size / unit, MEASURED.0, MEASURED.1, |units| {
                let step = |update| measurer.profiled(units * unit, update);
                let plan = way.fits(self.updates(*way), step, room, (self.slowdown, false))?;
                let fits = plan.is_some();
                found = plan
                    .map(|plan| Largest::new(*way, units * unit, &plan))
                    .or(found.take());
                Ok::<_, Failure>(fits)
            })?;
            all.extend(found);
        }
        Ok(all)
    }
}

/// Asks other processes of this program.
struct Measurer<'a> {
    args: &'a MaxArgs,
    device: DeviceId,
    subject: &'a Subject<'a>,
    /// What was measured, by size and update.
    profiled: RefCell<HashMap<(usize, Update), Rc<MeasuredStep>>>,
}

impl Measurer<'_> {
    fn measure(&self) -> MeasureArgs {
        MeasureArgs {
            device: Some(DeviceChoice::One(self.device)),
            ..self.args.measure.clone()
        }
    }

    /// A size as it is measured, with one of the updates.
    fn profiled(&self, size: usize, update: Update) -> Result<Rc<MeasuredStep>, Failure> {
        if let Some(step) = self.profiled.borrow().get(&(size, update)) {
            return Ok(Rc::clone(step));
        }
        note!("measuring {} {size}", self.subject.varied.lever.name());
        let mut config = self.subject.sized(&self.args.config, size);
        config.replace.update = Some(update.into());
        let profile = ProfileArgs {
            config,
            measure: self.measure(),
            output: None,
            json: true,
        };
        let answer = child::ask(&words("profile", &profile)?)?;
        let step = MeasuredStep::from_json(&answer).map_err(Failure::other)?;
        let step = Rc::new(step);
        let mut profiled = self.profiled.borrow_mut();
        profiled.insert((size, update), Rc::clone(&step));
        Ok(step)
    }

    /// Trains a size for a few steps.
    fn confirm(&self, size: usize, budget: Bytes) -> Result<Confirmed, Failure> {
        note!("running {} {size}", self.subject.varied.lever.name());
        let config = self.subject.sized(&self.args.config, size);
        let training = TrainArgs {
            schedule: ScheduleArgs {
                budget: Some(Size::Bytes(budget)),
                ..ScheduleArgs::default()
            },
            steps: Some(CONFIRMING_STEPS),
            ..config.training(self.measure())
        };
        let answer = child::ask(&words("train", &training)?).map_err(|refused| {
            let Failure { code, report } = refused.into();
            let name = self.subject.varied.lever.name();
            Failure::coded(code, format!("{name} {size} was not confirmed: {report}"))
        })?;
        let run: RunRecord = serde_json::from_str(&answer).map_err(Failure::other)?;
        Ok(Confirmed {
            size,
            predicted_peak_bytes: run.predicted_peak_bytes,
            measured_peak_bytes: run.measured_peak_bytes,
            measured_step_s: run.measured_step_s,
            fits: run.measured_peak_bytes <= budget,
        })
    }
}
