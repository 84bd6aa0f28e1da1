//! `rekindle sweep`: one config under many schedules, each in a separate process.

use std::path::Path;

use rekindle_plan::{Bytes, PlanError};
use serde::de::IgnoredAny;

use super::train;
use crate::{
    args::{SweepArgs, TrainArgs},
    child,
    config::{self, Config},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    output,
    started::Started,
    stop,
    sweep::{
        Point, SweepRecord, SweepRow, folder, point,
        record::{RowOutcome, SWEEP_FORMAT},
    },
};

/// Runs all rows, and shows them.
pub fn run(args: &SweepArgs) -> Outcome {
    let mut training = TrainArgs {
        steps: Some(args.steps),
        ..args.config.training(args.measure.clone())
    };
    let config = config::load(&training)?;
    let device = config.device().resolve()?;
    let bytes = |size| train::budget_of(size, &device, &config);
    let points = points(args, &config, bytes)?;
    let limit = match config.run.budget {
        Some(size) => Some(bytes(size)?),
        None => device.available_bytes(),
    };
    let name = args.config.config.display().to_string();
    let record = SweepRecord {
        format: SWEEP_FORMAT.into(),
        config: name.clone(),
        device: device.device.to_string(),
        device_name: device.name.clone(),
        count: config.count(),
        batch: config.training.batch,
        steps: args.steps,
        limit_bytes: limit,
        rows_asked: 0,
        interrupted: true,
        rows: Vec::new(),
    };
    let folder = args.output.as_deref();
    if let Some(folder) = folder {
        folder::open(folder)?;
        Started::now(name, None)?.keep(folder)?;
    }
    stop::in_order("stopping; rows that are done are kept");

    training.measure.device = Some(DeviceChoice::One(device.device));
    let mut sweep = Sweep {
        training,
        record,
        folder,
    };
    // If some rows are requested, default budgets are not run.
    let spread = args.segments.is_empty() && args.budgets.is_empty();
    let result = sweep.run(points, spread);

    let record = &sweep.record;
    if args.answer.json || !record.rows.is_empty() {
        output::answer(args.answer.json, record, SweepRecord::text)?;
    }
    match result {
        Err(failure) if failure.code == exit::INTERRUPTED => {
            let (done, asked) = (record.rows.len(), record.rows_asked);
            let message = format!("interrupted with {done} of {asked} rows done");
            Err(Failure::coded(failure.code, message).help(match folder {
                Some(folder) => format!("they are in {}", folder.display()),
                None => "repeat the command with `-o DIR` to keep the rows that are done".into(),
            }))
        }
        result => result,
    }
}

/// What to run, without budgets that are spread. The config's own number of segments, or budget, is among it.
fn points(
    args: &SweepArgs,
    config: &Config,
    bytes: impl Fn(rekindle::size::Size) -> Result<Bytes, Failure>,
) -> Result<Vec<Point>, Failure> {
    let stages = config.shape.stages.len();
    let wrong = |&&segments: &&usize| segments == 0 || segments > stages;
    if let Some(&segments) = args.segments.iter().find(wrong) {
        return Err(Failure::usage(PlanError::segments(segments, stages)));
    }
    let mut points = point::uniform(&args.segments, stages, !args.budgets.is_empty());
    let mut add = |point| {
        if !points.contains(&point) {
            points.push(point);
        }
    };
    for &size in &args.budgets {
        add(Point::Optimal(bytes(size)?));
    }
    match (config.run.segments, config.run.budget) {
        (Some(segments), _) if segments > 1 => add(Point::Segments(segments)),
        (_, Some(budget)) => add(Point::Optimal(bytes(budget)?)),
        _ => {}
    }
    Ok(points)
}

struct Sweep<'a> {
    /// What each row trains, in its own way.
    training: TrainArgs,
    record: SweepRecord,
    folder: Option<&'a Path>,
}

impl Sweep<'_> {
    fn run(&mut self, points: Vec<Point>, spread: bool) -> Outcome {
        let more = if spread { point::BUDGETS } else { 0 };
        self.record.rows_asked = points.len() + more;
        note!("measuring the stages");
        let smallest = self.smallest_budget()?;
        for &point in &points {
            self.row(point)?;
        }
        if spread {
            let plain = self.record.plain().map_or(smallest, |plain| plain.peak);
            let budgets = point::budgets(smallest, plain).into_iter();
            let mut budgets: Vec<_> = budgets.map(Point::Optimal).collect();
            budgets.retain(|budget| !points.contains(budget));
            self.record.rows_asked = points.len() + budgets.len();
            for budget in budgets {
                self.row(budget)?;
            }
        }
        self.record.interrupted = false;
        self.write()
    }

    /// Runs a row, and adds it to the record.
    fn row(&mut self, point: Point) -> Outcome {
        let mut row = self.trained(point)?;
        let line = row.line();
        if point != Point::Plain && row.ran.is_some() && self.record.plain_ran().is_some() {
            // The machine may be faster or slower by now.
            let again = self.trained(Point::Plain).ok();
            row.plain_after = again.and_then(|plain| Some(plain.ran?.measured));
        }
        self.record.add(row);
        note!(
            "{}/{} {line}",
            self.record.rows.len(),
            self.record.rows_asked
        );
        self.write()
    }

    fn write(&self) -> Outcome {
        let write = |folder| folder::write(folder, &self.record);
        self.folder.map_or(Ok(()), write)
    }

    /// The smallest feasible budget. Reports every error that all rows would have.
    fn smallest_budget(&self) -> Result<Bytes, Failure> {
        // Nothing fits one byte.
        let planning = Point::Optimal(Bytes(1)).of(TrainArgs {
            steps: None,
            ..self.training.clone()
        });
        match child::ask::<IgnoredAny>("plan", &planning) {
            Err(Failure {
                infeasible: Some(answer),
                ..
            }) => Ok(answer.smallest),
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::other("a plan fits one byte")),
        }
    }

    /// Runs a row.
    fn trained(&self, point: Point) -> Result<SweepRow, Failure> {
        let training = point.of(self.training.clone());
        let failure = match child::ask("train", &training) {
            Ok(run) => return Ok(SweepRow::done(point, run)),
            Err(failure) => failure,
        };
        let outcome = match failure.code {
            exit::INTERRUPTED => return Err(failure),
            _ if failure.infeasible.is_some() && matches!(point, Point::Optimal(_)) => {
                RowOutcome::NoPlan
            }
            // More than the machine can give, known from shapes or found.
            exit::NO_PLAN | exit::OUT_OF_MEMORY => RowOutcome::OutOfMemory,
            _ => RowOutcome::Failed,
        };
        Ok(SweepRow::not_done(point, outcome, failure.message))
    }
}
