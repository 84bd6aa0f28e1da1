//! The record of a sweep, from which its table, files and picture are made.
//!
//! A row's own values come from its run. Comparative values (overhead, fits, Pareto) are computed again with each added
//! row, so that all rows of a record are consistent.
//!
//! **Activations only** are the peak bytes in use in forward pass, loss and backward pass minus the bytes in use when
//! the forward pass starts: memory that does not depend on the schedule (parameters, optimizer state, data, this batch,
//! the program itself) is left out, and gradients that the backward pass has made by then are included. Only steps
//! after the first count, because some permanent memory is allocated in the first.

use rekindle::meter::{Count, Phase};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::record::{PhasedStep, PlainRun, RunRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Point, pareto};

/// Format tag of [`SweepRecord`].
pub const SWEEP_FORMAT: &str = "rekindle-sweep/3";

/// A whole sweep, or as much of it as is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRecord {
    /// [`SWEEP_FORMAT`].
    pub format: String,
    /// The config's file.
    pub config: String,
    /// CRC-32, in hexadecimal, of the model, the training and the data as config and arguments have them: `--resume`
    /// continues a sweep with an equal one.
    pub config_crc32: String,
    /// Where it ran.
    pub device: String,
    /// What the device is called.
    pub device_name: String,
    /// Which bytes peaks count.
    pub count: Count,
    /// Samples in each step.
    pub batch: usize,
    /// Steps of each row.
    pub steps: usize,
    /// What a row without a budget should fit: the config's budget, or else what the device has.
    pub limit_bytes: Option<Bytes>,
    /// The run that overheads are against; `null` where no row ran.
    pub plain: Option<PlainRun>,
    /// Budgets spread between the smallest and the plain run's peak; empty until they are known, and where `--segments`
    /// or `--budgets` asks for rows.
    pub spread_bytes: Vec<Bytes>,
    /// Number of rows to run.
    pub rows_asked: usize,
    /// Whether some rows did not run; also true while the sweep runs.
    pub interrupted: bool,
    /// The rows that are done, in the order in which they ran.
    pub rows: Vec<SweepRow>,
}

/// How a row ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowOutcome {
    /// It ran.
    Done,
    /// No plan fits its budget.
    NoPlan,
    /// The device's memory ran out.
    OutOfMemory,
    /// Anything else.
    #[default]
    Failed,
}

/// What a row was made for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// The plain run.
    #[default]
    Plain,
    /// Segments of equal length.
    Segments,
    /// The fastest plan for a budget.
    Optimal,
}

/// One row: what was asked for, and what came of it. Flat, so that CSV has the same fields as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRow {
    /// What it was made for.
    pub kind: RowKind,
    /// How it ended; measured and predicted keys are `null` unless it is `done`.
    pub outcome: RowOutcome,
    /// Number of segments, as asked for or as the schedule has; `null` for nested schedules.
    pub segments: Option<usize>,
    /// The budget; `null` where there was none.
    pub budget_bytes: Option<Bytes>,
    /// The planner that found the schedule.
    pub planner: Option<String>,
    /// Peak that was predicted.
    pub predicted_peak_bytes: Option<Bytes>,
    /// Peak that was measured, over everything that the row's process did.
    pub measured_peak_bytes: Option<Bytes>,
    /// The most bytes in use in forward, loss and backward, less those in use as the forward starts (parameters,
    /// optimizer state, data, the batch, the program), in steps after the first. This is what depends on the schedule;
    /// gradients of parameters that exist by then are included.
    pub activation_bytes: Option<Bytes>,
    /// Step time that was predicted.
    pub predicted_step_s: Option<Seconds>,
    /// Median step time, the first step left out where there are more.
    pub measured_step_s: Option<Seconds>,
    /// Share by which a step takes longer than the plain run's: 0.25 is a quarter longer.
    pub overhead: Option<f64>,
    /// Whether the measured peak is within `limit_bytes`; true where there is no limit.
    pub fits: bool,
    /// Whether the measured peak is within the row's own budget; `null` without one.
    pub within_budget: Option<bool>,
    /// Whether no other row takes at most as much memory and time, and less of one.
    pub pareto: bool,
    /// What went wrong; `null` where nothing did.
    pub message: Option<String>,
}

impl SweepRow {
    /// A row for a point, without a result yet.
    fn asking(point: Point) -> Self {
        let (kind, segments, budget_bytes) = match point {
            Point::Plain => (RowKind::Plain, Some(1), None),
            Point::Segments(segments) => (RowKind::Segments, Some(segments), None),
            Point::Optimal(budget) => (RowKind::Optimal, None, Some(budget)),
        };
        Self {
            kind,
            segments,
            budget_bytes,
            ..Self::default()
        }
    }

    /// A row that ran.
    pub fn done(point: Point, run: &RunRecord) -> Self {
        let measured = run.measured_peak_bytes;
        Self {
            outcome: RowOutcome::Done,
            segments: run.segments.as_ref().map(Vec::len),
            planner: Some(run.planner.clone()),
            predicted_peak_bytes: Some(run.predicted_peak_bytes),
            measured_peak_bytes: Some(measured),
            within_budget: run.budget_bytes.map(|budget| measured <= budget),
            activation_bytes: activations(&run.phases),
            predicted_step_s: Some(run.predicted_step_s),
            measured_step_s: Some(run.measured_step_s),
            ..Self::asking(point)
        }
    }

    /// A row that did not end well.
    pub fn not_done(point: Point, outcome: RowOutcome, message: String) -> Self {
        Self {
            outcome,
            message: Some(message),
            ..Self::asking(point)
        }
    }

    /// Its memory and time, if it ran.
    fn cost(&self) -> Option<(u64, f64)> {
        Some((self.measured_peak_bytes?.0, self.measured_step_s?.0))
    }
}

impl SweepRecord {
    /// Whether rows of both can be compared: of one config, with the same arguments, on one device.
    pub fn is_of(&self, other: &Self) -> bool {
        let what = |record: &Self| {
            (
                record.device.clone(),
                record.count,
                record.steps,
                record.config_crc32.clone(),
            )
        };
        what(self) == what(other)
    }

    /// Whether a row answers this point already.
    pub fn has(&self, point: Point) -> bool {
        let asked = SweepRow::asking(point);
        self.rows.iter().any(|row| {
            row.kind == asked.kind
                && match row.kind {
                    RowKind::Plain => true,
                    RowKind::Segments => row.segments == asked.segments,
                    RowKind::Optimal => row.budget_bytes == asked.budget_bytes,
                }
        })
    }

    /// Adds a row. `plain` is its run's prediction of the plain run.
    pub fn add(&mut self, row: SweepRow, plain: Option<PlainRun>) {
        if let (RowKind::Plain, Some(peak_bytes), Some(step_s)) =
            (row.kind, row.measured_peak_bytes, row.measured_step_s)
        {
            self.plain = Some(PlainRun {
                peak_bytes,
                step_s,
                measured: true,
                range_s: None,
            });
        } else if self.plain.is_none() {
            self.plain = plain;
        }
        self.rows.push(row);
        self.compare();
    }

    /// Works out what rows say in comparison with each other.
    fn compare(&mut self) {
        let costs: Vec<_> = self.rows.iter().map(SweepRow::cost).collect();
        let front = pareto::front(&costs);
        let plain = self.plain.as_ref().map(|plain| plain.step_s.0);
        for (row, pareto) in self.rows.iter_mut().zip(front) {
            row.pareto = pareto;
            row.overhead = row
                .measured_step_s
                .zip(plain.filter(|&plain| plain > 0.0))
                .map(|(step, plain)| step.0 / plain - 1.0);
            row.fits = row
                .measured_peak_bytes
                .is_some_and(|peak| self.limit_bytes.is_none_or(|limit| peak <= limit));
        }
    }
}

/// See the [module](self).
fn activations(phases: &[PhasedStep]) -> Option<Bytes> {
    let after_the_first = phases.iter().filter(|step| step.step > 1);
    let own = |step: &PhasedStep| {
        let mut readings = step.phases.iter();
        let start = readings.find(|reading| reading.phase == Phase::ZeroGrad)?;
        let peak = readings
            .filter(|reading| reading.phase != Phase::Optimizer)
            .map(|reading| reading.memory.peak_in_use_bytes)
            .max()?;
        Some(peak - start.memory.in_use_bytes)
    };
    let all = || phases.iter().filter_map(own).max();
    after_the_first.filter_map(own).max().or_else(all)
}
