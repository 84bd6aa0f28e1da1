//! The record of a sweep, from which its table, for terminals and pages, its files and its picture are made.
//!
//! A row's own values come from its run. Comparative values (slowdown, fits, Pareto) are computed again with each added
//! row, so that all rows of a record are consistent.
//!
//! **Activations only** are the peak bytes in use in forward pass, loss and backward pass minus the bytes in use when
//! the forward pass starts: memory that does not depend on the schedule (parameters, optimizer state, data, this batch,
//! the program itself) is left out, and gradients that the backward pass has made by then are included. Only steps
//! after the first count, because some permanent memory is allocated in the first.

use std::fmt::Write;

use rekindle::meter::{Count, Phase};
use rekindle_plan::Bytes;
use rekindle_train::record::{Measured, PhasedStep, Ran, RunRecord, Slowdown, Turn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Point;
use crate::{
    plot::text::plot,
    summary::error,
    table::{self, Cell, Table, several},
    terminal,
};

/// Format tag of [`SweepRecord`].
pub const SWEEP_FORMAT: &str = "rekindle-sweep/5";

/// The note below the table.
pub const MARK: &str = "* no other run takes less memory without taking more time. `x plain`: from the least to the most, of the plain \
                        runs before and after; `about 1` where 1 is between these.";

/// A whole sweep, or as much of it as is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRecord {
    /// [`SWEEP_FORMAT`].
    pub format: String,
    /// The config's file.
    pub config: String,
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

/// One row: what was asked for, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRow {
    /// What was asked for.
    pub asked: Point,
    /// How it ended.
    pub outcome: RowOutcome,
    /// What ran; no keys of it unless it is `done`.
    #[serde(flatten)]
    pub ran: Option<Ran>,
    /// The most bytes in use in forward, loss and backward, less those in use as the forward starts (parameters,
    /// optimizer state, data, the batch, the program), in steps after the first. This is what depends on the schedule;
    /// gradients of parameters that exist by then are included.
    pub activation_bytes: Option<Bytes>,
    /// The plain run, as measured again after this one; `null` of the plain run, and where that is not possible.
    pub plain_after: Option<Measured>,
    /// How many times as long as the plain run's a step takes: of the plain runs before and after it, or of the predicted time
    /// where the plain run did not run.
    #[serde(flatten)]
    pub slowdown: Option<Slowdown>,
    /// Whether the measured peak is within `limit_bytes`; true where there is no limit.
    pub fits: bool,
    /// Whether no other row takes at most as much memory and time, and less of one.
    pub pareto: bool,
    /// What went wrong; `null` where nothing did.
    pub message: Option<String>,
}

impl SweepRow {
    /// A row that ran.
    pub fn done(asked: Point, run: RunRecord) -> Self {
        Self {
            asked,
            outcome: RowOutcome::Done,
            activation_bytes: activations(&run.phases),
            ran: Some(run.into()),
            ..Self::default()
        }
    }

    /// A row that did not end well.
    pub fn not_done(asked: Point, outcome: RowOutcome, message: String) -> Self {
        Self {
            asked,
            outcome,
            message: Some(message),
            ..Self::default()
        }
    }

    /// The row's name for people.
    pub fn name(&self) -> String {
        match self.asked {
            Point::Plain => "plain".into(),
            Point::Segments(segments) => format!("{segments} segments"),
            Point::Optimal(budget) => format!("plan {budget}"),
        }
    }

    fn cells(&self) -> [Cell; 8] {
        let ran = self.ran.as_ref();
        let predicted = ran.map(|ran| ran.plan.predicted_peak);
        let measured = ran.map(|ran| ran.measured.peak);
        let errors = predicted.zip(measured);
        let mark = if self.pareto { "*" } else { "" };
        [
            Cell::from(self.name()),
            Cell::bytes(predicted),
            Cell::bytes(measured),
            Cell::text(errors.map(|(one, other)| error(one.0 as f64, other.0 as f64))),
            Cell::bytes(self.activation_bytes),
            Cell::seconds(ran.map(|ran| ran.measured.step))
                .between(ran.and_then(|ran| ran.measured.range)),
            self.slowdown.map(Cell::slowdown).unwrap_or_default(),
            format!("{:<4}{mark}", self.verdict()).trim_end().into(),
        ]
    }

    /// The row in a few words, while others still run.
    pub fn line(&self) -> String {
        let name = self.name();
        match &self.ran {
            Some(ran) => format!("{name}: {}", ran.measured),
            None => format!("{name}: {}", self.verdict()),
        }
    }

    fn verdict(&self) -> &'static str {
        let exceeds = |ran: &Ran| ran.plan.budget.is_some_and(|most| ran.measured.peak > most);
        match (self.outcome, self.fits) {
            (RowOutcome::Done, _) if self.ran.as_ref().is_some_and(exceeds) => "EXCEEDED",
            (RowOutcome::Done, true) => "yes",
            (RowOutcome::Done, false) => "no",
            (RowOutcome::NoPlan, _) => "no plan",
            (RowOutcome::OutOfMemory, _) => "memory",
            (RowOutcome::Failed, _) => "failed",
        }
    }
}

impl SweepRecord {
    /// The plain run, if it ran.
    pub fn plain_ran(&self) -> Option<&Ran> {
        let plain = self.rows.iter().find(|row| row.asked == Point::Plain);
        plain?.ran.as_ref()
    }

    /// The plain run as measured first, or else as the first row that ran predicts it.
    pub fn plain(&self) -> Option<Measured> {
        let predicted = || {
            let ran = self.rows.iter().find_map(|row| row.ran.as_ref())?;
            Some(Measured {
                peak: ran.plan.plain_peak,
                in_use: ran.plan.plain_peak,
                step: ran.plan.plain_time,
                range: None,
            })
        };
        let measured = self.plain_ran().map(|ran| ran.measured);
        measured.or_else(predicted)
    }

    /// Adds a row, and works out what rows say in comparison with each other.
    pub fn add(&mut self, row: SweepRow) {
        self.rows.push(row);
        let measured = |row: &SweepRow| row.ran.as_ref().map(|ran| ran.measured);
        let costs = self.rows.iter().map(measured);
        let costs: Vec<_> = costs
            .map(|cost| cost.map(|cost| (cost.peak.0, cost.step.0)))
            .collect();
        let front = front(&costs);
        let mut before = self.plain();
        for ((row, cost), pareto) in self.rows.iter_mut().zip(costs).zip(front) {
            row.pareto = pareto;
            let turns = row.ran.iter().flat_map(|ran| {
                let plain = before.into_iter().chain(row.plain_after);
                let planned = ran.measured;
                plain.map(move |plain| Turn { planned, plain })
            });
            row.slowdown = Slowdown::of(&turns.collect::<Vec<_>>());
            before = row.plain_after.or(before);
            row.fits = cost.is_some_and(|(peak, _)| {
                let limit = self.limit_bytes;
                limit.is_none_or(|limit| peak <= limit.0)
            });
        }
    }

    /// The table with its heading and notes, for standard output.
    pub fn text(&self) -> String {
        let heading = terminal::wrapped(&self.heading(), "");
        let mut text = format!("{heading}\n\n{}\n\n", self.table());
        for note in [MARK.to_owned()].into_iter().chain(self.messages()) {
            let _ = writeln!(text, "{}", terminal::wrapped(&note, ""));
        }
        let ran = self.rows.iter().filter_map(|row| row.ran.as_ref());
        let points: Vec<_> = ran
            .map(|ran| (ran.measured.peak, ran.measured.step))
            .collect();
        format!("{text}\n{}", plot(&points))
    }

    /// Its rows.
    pub fn table(&self) -> Table {
        let header = "run|predicted|measured|error|activations|step|x plain|fits";
        let mut table = table::table(header, 1..7);
        for row in &self.rows {
            table.add_row(row.cells());
        }
        table
    }

    /// What was run.
    pub fn heading(&self) -> String {
        let limit = self.limit_bytes.map(|limit| format!("; limit {limit}"));
        format!(
            "{} on {} ({}), batch {}, {} each{}.",
            self.config,
            self.device,
            self.device_name,
            self.batch,
            several(self.steps, "step"),
            limit.unwrap_or_default()
        )
    }

    /// What went wrong.
    pub fn messages(&self) -> Vec<String> {
        let wrong = |row: &SweepRow| Some(format!("{}: {}.", row.name(), row.message.as_ref()?));
        let mut messages: Vec<String> = self.rows.iter().filter_map(wrong).collect();
        if let (None, Some(plain)) = (self.plain_ran(), self.plain()) {
            messages.push(format!(
                "The plain run did not run: `x plain` is of {}, as predicted.",
                plain.step
            ));
        }
        messages
    }
}

/// For each row's memory and time, whether no other takes at most as much of both and less of one: the Pareto front. Rows
/// that are `None` take no part. Costs O(n^2) for the few dozen rows of a sweep.
pub(super) fn front(costs: &[Option<(u64, f64)>]) -> Vec<bool> {
    let beats = |a: (u64, f64), b: (u64, f64)| a.0 <= b.0 && a.1 <= b.1 && a != b;
    costs
        .iter()
        .map(|cost| cost.is_some_and(|one| !costs.iter().flatten().any(|&other| beats(other, one))))
        .collect()
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
