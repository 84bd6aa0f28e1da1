//! `rekindle sweep`: one config under many schedules, each in a process of its own.

use rekindle::model::stages::StagePlan;
use rekindle_plan::{Bytes, PlanError};

use super::train;
use crate::{
    args::SweepArgs,
    child::Children,
    config::{self, Config, Overrides},
    exit,
    failure::{Failure, Outcome},
    output, progress,
    sweep::{Point, RowProgress, Runner, SweepFolder, SweepRecord, point, record::SWEEP_FORMAT},
};

/// Runs all rows, and shows them.
pub fn run(args: &SweepArgs) -> Outcome {
    let config = config::load(
        &args.config.config,
        &Overrides {
            steps: Some(args.steps),
            ..Overrides::from(&args.config.replace)
        },
    )?;
    check_segments(args, &config)?;
    let device = train::device(args.measure.device, &config)?.resolve()?;
    let budgets = args
        .budgets
        .iter()
        .map(|&size| train::bytes_of(size, &device))
        .collect::<Result<Vec<_>, _>>()?;
    let limit = match config.run.budget {
        Some(size) => Some(train::bytes_of(size, &device)?),
        None => device.total_bytes,
    };
    let folder = match &args.output {
        Some(path) => Some(SweepFolder::open(path)?),
        None => None,
    };
    progress::stop_on_interrupt("stopping; rows that are done are kept");

    let mut sweep = Sweep {
        runner: Runner::new(
            Children::new()?,
            args.config.for_child("train", device.device, args.count),
        ),
        chosen: Point::of_config(&config.run),
        record: SweepRecord {
            format: SWEEP_FORMAT.into(),
            config: args.config.config.display().to_string(),
            device: device.device.to_string(),
            device_name: device.name.clone(),
            device_bytes: device.total_bytes,
            count: config.count(args.count),
            batch: config.training.batch,
            steps: args.steps,
            limit_bytes: limit,
            plain: None,
            rows_asked: 0,
            interrupted: true,
            rows: Vec::new(),
        },
        folder,
        progress: RowProgress::new(),
    };
    let result = sweep.run(args, &config, budgets);
    sweep.progress.finish();

    let record = &sweep.record;
    if args.json {
        output::json(record)?;
    } else if !record.rows.is_empty() {
        output::text(&record.text())?;
    }
    match result {
        Err(failure) if failure.code == exit::INTERRUPTED => Err(Failure::with_help(
            exit::INTERRUPTED,
            format!(
                "interrupted with {} of {} rows done",
                record.rows.len(),
                record.rows_asked
            ),
            match &args.output {
                Some(folder) => format!("they are in {}", folder.display()),
                None => {
                    "they are shown above; `-o DIR` would have kept them in files as well".into()
                }
            },
        )),
        result => result,
    }
}

/// Refuses segment counts that the model has too few stages for.
fn check_segments(args: &SweepArgs, config: &Config) -> Outcome {
    let stages = stages(config);
    let wrong = |&&segments: &&usize| segments == 0 || segments > stages;
    match args.segments.iter().find(wrong) {
        Some(&segments) => Err(PlanError::Segments { segments, stages }.into()),
        None => Ok(()),
    }
}

fn stages(config: &Config) -> usize {
    StagePlan::new(&config.model, &config.shape).stages.len()
}

struct Sweep {
    runner: Runner,
    chosen: Point,
    record: SweepRecord,
    folder: Option<SweepFolder>,
    progress: RowProgress,
}

impl Sweep {
    fn run(&mut self, args: &SweepArgs, config: &Config, asked: Vec<Bytes>) -> Outcome {
        let mut points = point::uniform(&args.segments, stages(config), !args.budgets.is_empty());
        // Where segments alone are asked for, budgets are not run.
        let spread = args.budgets.is_empty() && args.segments.is_empty();
        points.extend(asked.into_iter().map(Point::Optimal));
        let more = if spread { point::BUDGETS } else { 0 };
        if !points.contains(&self.chosen) {
            points.push(self.chosen);
        }
        self.record.rows_asked = points.len() + more;

        self.progress.measuring();
        let smallest = self.runner.smallest_budget(args.measure.fresh)?;
        for &point in &points {
            self.row(point)?;
        }
        if spread {
            let plain = self.record.plain.as_ref().map(|plain| plain.peak_bytes);
            let budgets = point::budgets(smallest, plain.unwrap_or(smallest));
            self.record.rows_asked = points.len() + budgets.len();
            for budget in budgets {
                self.row(Point::Optimal(budget))?;
            }
        }
        self.record.interrupted = false;
        self.write()
    }

    fn row(&mut self, point: Point) -> Outcome {
        let (done, of) = (self.record.rows.len(), self.record.rows_asked);
        self.progress.starts(done, of);
        let chosen = point == self.chosen;
        let (row, plain) = self.runner.row(point, chosen, self.record.steps)?;
        self.record.add(row, plain);
        self.progress.ended(&self.record);
        self.write()
    }

    fn write(&self) -> Outcome {
        match &self.folder {
            Some(folder) => folder.write(&self.record),
            None => Ok(()),
        }
    }
}
