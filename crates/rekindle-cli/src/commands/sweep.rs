//! `rekindle sweep`: one config under many schedules, each in a separate process.

use rekindle_plan::{Bytes, PlanError};
use rekindle_train::model::stages::ModelStages;

use super::train;
use crate::{
    args::SweepArgs,
    config::{self, Config, Overrides},
    device::DeviceChoice,
    exit,
    failure::{Failure, Outcome},
    output,
    started::Started,
    stop,
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
    let device = train::device(args.measure.device, &config).resolve()?;
    let budgets = args
        .budgets
        .iter()
        .map(|&size| train::bytes_of(size, &device))
        .collect::<Result<Vec<_>, _>>()?;
    let limit = match config.run.budget {
        Some(size) => Some(train::bytes_of(size, &device)?),
        None => device.available_bytes(),
    };
    let mut record = SweepRecord {
        format: SWEEP_FORMAT.into(),
        config: args.config.config.display().to_string(),
        config_crc32: identity(&config)?,
        device: device.device.to_string(),
        device_name: device.name.clone(),
        device_bytes: device.total_bytes,
        count: config.count(args.measure.count),
        batch: config.training.batch,
        steps: args.steps,
        limit_bytes: limit,
        plain: None,
        spread_bytes: Vec::new(),
        rows_asked: 0,
        interrupted: true,
        rows: Vec::new(),
    };
    let folder = match (&args.output, &args.resume) {
        (_, Some(path)) => Some(SweepFolder::resume(path, &mut record)?),
        (Some(path), None) => {
            let folder = SweepFolder::open(path)?;
            Started::now()?.keep(path)?;
            Some(folder)
        }
        (None, None) => None,
    };
    stop::in_order("stopping; rows that are done are kept");

    let mut sweep = Sweep {
        runner: Runner::new(args, DeviceChoice::One(device.device)),
        chosen: Point::of_config(&config.run),
        record,
        folder,
        progress: RowProgress::new(),
    };
    let result = sweep.run(args, &config, budgets);
    sweep.progress.finish();

    let record = &sweep.record;
    if args.answer.json {
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
            match args.output.as_ref().or(args.resume.as_ref()) {
                Some(_) if record.rows.is_empty() => "repeat the command".into(),
                Some(folder) => format!(
                    "they are in {0}; the same command with `--resume {0}` in place of `-o` runs the others",
                    folder.display()
                ),
                None => {
                    "they are shown above; `-o DIR` would have kept them in files as well".into()
                }
            },
        )),
        result => result,
    }
}

/// The common identity of a sweep's rows: model, training and data from config and arguments.
fn identity(config: &Config) -> Result<String, Failure> {
    let all = (&config.model, &config.training, &config.data);
    let json = serde_json::to_vec(&all).map_err(Failure::other)?;
    Ok(format!("{:08x}", crc32fast::hash(&json)))
}

/// Rejects segment counts for which the model has too few stages.
fn check_segments(args: &SweepArgs, config: &Config) -> Outcome {
    let stages = stages(config);
    let wrong = |&&segments: &&usize| segments == 0 || segments > stages;
    match args.segments.iter().find(wrong) {
        Some(&segments) => Err(PlanError::Segments { segments, stages }.into()),
        None => Ok(()),
    }
}

fn stages(config: &Config) -> usize {
    ModelStages::new(&config.model, &config.shape).stages.len()
}

struct Sweep<'a> {
    runner: Runner<'a>,
    chosen: Point,
    record: SweepRecord,
    folder: Option<SweepFolder>,
    progress: RowProgress,
}

impl Sweep<'_> {
    fn run(&mut self, args: &SweepArgs, config: &Config, asked: Vec<Bytes>) -> Outcome {
        let budgets_asked = !args.budgets.is_empty();
        let mut points = point::uniform(&args.segments, stages(config), budgets_asked);
        // If other rows are requested, default budgets are not run.
        let spread = args.segments.is_empty() && !budgets_asked;
        points.extend(asked.into_iter().map(Point::Optimal));
        let more = if spread { point::BUDGETS } else { 0 };
        if !points.contains(&self.chosen) {
            points.push(self.chosen);
        }
        self.record.rows_asked = points.len() + more;

        if points.iter().any(|&point| !self.record.has(point)) || (spread && !self.is_spread()) {
            self.progress.measuring();
            let smallest = self.runner.smallest_budget()?;
            for &point in &points {
                self.row(point)?;
            }
            if spread && !self.is_spread() {
                let plain = self.record.plain.as_ref().map(|plain| plain.peak_bytes);
                self.record.spread_bytes = point::budgets(smallest, plain.unwrap_or(smallest));
            }
        }
        if spread {
            let budgets = self.record.spread_bytes.clone();
            self.record.rows_asked = points.len() + budgets.len();
            for budget in budgets {
                self.row(Point::Optimal(budget))?;
            }
        }
        self.record.interrupted = false;
        self.write()
    }

    fn is_spread(&self) -> bool {
        !self.record.spread_bytes.is_empty()
    }

    /// Runs a row, unless it already exists.
    fn row(&mut self, point: Point) -> Outcome {
        if self.record.has(point) {
            return Ok(());
        }
        let (done, of) = (self.record.rows.len(), self.record.rows_asked);
        self.progress.starts(done, of);
        let chosen = point == self.chosen;
        let (row, plain) = self.runner.row(point, chosen)?;
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
