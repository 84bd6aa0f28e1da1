//! A sweep's table, for a terminal and on a page.

use std::fmt::Write;

use rekindle_train::record::Ran;

use super::{
    Point,
    record::{RowOutcome, SweepRecord, SweepRow},
};
use crate::{
    summary::error,
    table::{self, Cell, Table, several},
    terminal,
};

/// The note below the table.
pub const MARK: &str = "* no other run takes less memory without taking more time.";

impl SweepRow {
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
        let times = self
            .overhead
            .map(|overhead| format!("{:.2}x", 1.0 + overhead));
        let mark = if self.pareto { "*" } else { "" };
        [
            Cell::from(self.name()),
            Cell::bytes(predicted),
            Cell::bytes(measured),
            Cell::text(errors.map(|(one, other)| error(one.0 as f64, other.0 as f64))),
            Cell::bytes(self.activation_bytes),
            Cell::seconds(ran.map(|ran| ran.measured.step)),
            Cell::text(times),
            format!("{:<4}{mark}", self.verdict()).trim_end().into(),
        ]
    }

    /// The row in a few words, while others still run.
    pub fn line(&self) -> String {
        let name = self.name();
        match (self.outcome, &self.ran) {
            (_, Some(Ran { measured, .. })) => {
                format!("{name}: peak {}, step {}", measured.peak, measured.step)
            }
            (RowOutcome::NoPlan, _) => format!("{name}: no plan fits"),
            (RowOutcome::OutOfMemory, _) => format!("{name}: out of memory"),
            _ => format!("{name}: failed"),
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
    /// The table with its heading and notes, for standard output.
    pub fn text(&self) -> String {
        let heading = terminal::wrapped(&self.heading(), "");
        let mut text = format!("{heading}\n\n{}\n\n", self.table());
        for note in [MARK.to_owned()].into_iter().chain(self.messages()) {
            let _ = writeln!(text, "{}", terminal::wrapped(&note, ""));
        }
        text
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
        if let (None, Some((_, step))) = (self.plain_ran(), self.plain()) {
            messages.push(format!(
                "The plain run did not run: `x plain` is of {step}, as predicted."
            ));
        }
        if self.interrupted {
            let (done, asked) = (self.rows.len(), self.rows_asked);
            messages.push(format!("Stopped with {done} of {asked} rows done."));
        }
        messages
    }
}
