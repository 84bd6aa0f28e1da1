//! A sweep's table, for a terminal and on a page.

use std::fmt::Write;

use super::record::{RowKind, RowOutcome, SweepRecord, SweepRow};
use crate::{
    table::{self, Cell, Table, several},
    terminal,
};

/// Headers in two lines, so that the columns fit 80 characters.
const HEADER: [&str; 9] = [
    "\nrun",
    "peak\npredicted",
    "peak\nmeasured",
    "activations\nonly",
    "step\npredicted",
    "step\ntime",
    "time\nadded",
    "samples\nper s",
    "\nfits",
];

/// Columns to drop on a narrow terminal, in this order.
const SPARED: [usize; 4] = [1, 7, 3, 6];

/// The notes below the table.
pub const MARKS: &str =
    "* no other run takes less memory without taking more time; > the config's own schedule.";

/// A share with its sign, and none where it rounds to 0.
fn percent(share: f64) -> String {
    match (100.0 * share).round() {
        0.0 => "0%".into(),
        percent => format!("{percent:+}%"),
    }
}

impl SweepRow {
    /// The row's name for people.
    pub fn name(&self) -> String {
        match (self.kind, self.budget_bytes, self.segments) {
            (RowKind::Plain, ..) => "plain".into(),
            (RowKind::Segments, _, segments) => format!("{} segments", segments.unwrap_or(1)),
            (RowKind::Optimal, Some(budget), _) => format!("plan {budget}"),
            (RowKind::Config, Some(budget), _) => format!("config {budget}"),
            (RowKind::Optimal, None, _) => "plan".into(),
            (RowKind::Config, None, _) => "config's plan".into(),
        }
    }

    /// For a page with both step times; else with one.
    fn cells(&self, page: bool) -> [Cell; 9] {
        let measured = self.measured_step_s;
        let predicted = self.predicted_step_s.filter(|_| page || measured.is_none());
        let overhead = self.overhead.filter(|_| self.kind != RowKind::Plain);
        let marks = [(self.pareto, "*"), (self.chosen, ">")];
        let marks = marks
            .map(|(set, mark)| if set { mark } else { "" })
            .concat();
        [
            Cell::from(self.name()),
            Cell::bytes(self.predicted_peak_bytes),
            Cell::bytes(self.measured_peak_bytes),
            Cell::bytes(self.activation_bytes),
            Cell::seconds(predicted),
            Cell::seconds(measured),
            Cell::text(overhead.map(percent)),
            Cell::text(self.samples_per_s.map(rate)),
            format!("{:<4}{marks}", self.verdict()).trim_end().into(),
        ]
    }

    /// The row in a few words, while others still run.
    pub fn line(&self) -> String {
        let name = self.name();
        match (self.outcome, self.measured_peak_bytes, self.measured_step_s) {
            (RowOutcome::Done, Some(peak), Some(step)) => {
                format!("{name}: peak {peak}, step {step}")
            }
            (RowOutcome::NoPlan, ..) => format!("{name}: no plan fits"),
            (RowOutcome::OutOfMemory, ..) => format!("{name}: out of memory"),
            _ => format!("{name}: failed"),
        }
    }

    pub fn verdict(&self) -> &'static str {
        match (self.outcome, self.fits) {
            (RowOutcome::Done, _) if self.within_budget == Some(false) => "EXCEEDED",
            (RowOutcome::Done, true) => "yes",
            (RowOutcome::Done, false) => "no",
            (RowOutcome::NoPlan, _) => "no plan",
            (RowOutcome::OutOfMemory, _) => "memory",
            (RowOutcome::Failed, _) => "failed",
        }
    }
}

/// Samples per second, with a decimal where there are few.
fn rate(per_second: f64) -> String {
    if per_second < 10.0 {
        format!("{per_second:.2}")
    } else {
        format!("{per_second:.0}")
    }
}

impl SweepRecord {
    /// The table with its heading and notes, for standard output.
    pub fn text(&self) -> String {
        let heading = terminal::wrapped(&self.heading(), "");
        let mut text = format!(
            "{heading}\n\n{}\n\n",
            table::shown(&self.table(false), &SPARED)
        );
        for note in [MARKS.to_owned()].into_iter().chain(self.notes()) {
            let _ = writeln!(text, "{}", terminal::wrapped(&note, ""));
        }
        text
    }

    /// Its rows; on a page with both step times.
    pub fn table(&self, page: bool) -> Table {
        let mut table = table::table(HEADER, 1..8);
        for row in &self.rows {
            table.add_row(row.cells(page));
        }
        table::dense(&mut table, 1..8);
        table
    }

    fn heading(&self) -> String {
        let limit = self
            .limit_bytes
            .map(|limit| format!("; the limit is {limit}"))
            .unwrap_or_default();
        let steps = several(self.steps, "step");
        format!(
            "{} on {} ({}), batch {}, {steps} each{limit}.",
            self.config, self.device, self.device_name, self.batch
        )
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for row in &self.rows {
            if let Some(message) = &row.message {
                notes.push(format!("{}: {message}.", row.name()));
            }
        }
        match &self.plain {
            Some(plain) if !plain.measured => notes.push(format!(
                "The plain run was not measured: `time added` is against the predicted {}.",
                plain.step_s
            )),
            _ => {}
        }
        if self.interrupted {
            notes.push(format!(
                "Stopped with {} of {} rows done.",
                self.rows.len(),
                self.rows_asked
            ));
        }
        notes
    }
}
