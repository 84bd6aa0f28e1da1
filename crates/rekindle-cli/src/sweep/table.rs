//! A sweep's table: for a terminal, and as Markdown. Both print the same cells.

use std::fmt::Write;

use rekindle_plan::Bytes;

use super::record::{RowKind, RowOutcome, SweepRecord, SweepRow};
use crate::{
    table::{self, several},
    terminal,
};

/// Headers in two lines, so that eight columns fit 80 characters.
const HEADER: [&str; 8] = [
    "\nrun",
    "peak\npredicted",
    "peak\nmeasured",
    "activations\nonly",
    "step\ntime",
    "over\nplain",
    "samples\nper s",
    "\nfits",
];

/// Columns that a narrow terminal does without, the first to go first.
const SPARED: [usize; 4] = [1, 6, 3, 5];

/// What the table says below itself.
pub const MARKS: &str =
    "* no other run takes less memory without taking more time; > what the config asks for.";

impl SweepRow {
    /// The row's name for people.
    pub fn name(&self) -> String {
        match (self.kind, self.budget_bytes, self.segments) {
            (RowKind::Plain, ..) => "plain".into(),
            (RowKind::Uniform, _, segments) => format!("{} segments", segments.unwrap_or(1)),
            (RowKind::Optimal, Some(budget), _) => format!("plan {budget}"),
            (RowKind::Config, Some(budget), _) => format!("config {budget}"),
            (RowKind::Optimal, None, _) => "plan".into(),
            (RowKind::Config, None, _) => "config's plan".into(),
            (RowKind::Ranks, ..) => {
                let ranks = several(self.ranks.unwrap_or(1), "rank");
                match self.outcome {
                    RowOutcome::Predicted => format!("{ranks}, predicted"),
                    _ => ranks,
                }
            }
        }
    }

    fn cells(&self) -> [String; 8] {
        let bytes = |bytes: Option<Bytes>| bytes.map_or("-".into(), |bytes| bytes.to_string());
        [
            self.name(),
            bytes(self.predicted_peak_bytes),
            bytes(self.measured_peak_bytes),
            bytes(self.activation_bytes),
            self.measured_step_s
                .or(self.predicted_step_s)
                .map_or("-".into(), |step| step.to_string()),
            match self.overhead {
                Some(overhead) if self.kind != RowKind::Plain => percent(overhead),
                _ => "-".into(),
            },
            self.samples_per_s.map_or("-".into(), rate),
            format!(
                "{:<4}{}{}",
                self.verdict(),
                mark(self.pareto, '*'),
                mark(self.chosen, '>')
            )
            .trim_end()
            .to_owned(),
        ]
    }

    /// The row in a few words, while others still run.
    pub fn line(&self) -> String {
        let name = self.name();
        match (self.outcome, self.measured_peak_bytes, self.measured_step_s) {
            (RowOutcome::Done, Some(peak), Some(step)) => {
                format!("{name}: peak {peak}, step {step}")
            }
            (RowOutcome::Predicted, ..) => {
                let step = self.predicted_step_s.unwrap_or_default();
                format!("{name}: step {step}")
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
            (RowOutcome::Predicted, _) => "-",
            (RowOutcome::NoPlan, _) => "no plan",
            (RowOutcome::OutOfMemory, _) => "memory",
            (RowOutcome::Failed, _) => "failed",
        }
    }
}

fn mark(set: bool, mark: char) -> String {
    if set { mark.into() } else { String::new() }
}

fn percent(share: f64) -> String {
    format!("{:+.0}%", 100.0 * share)
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
        let mut text = format!("{heading}\n\n{}\n\n", self.table());
        for note in [MARKS.to_owned()].into_iter().chain(self.notes()) {
            let _ = writeln!(text, "{}", terminal::wrapped(&note, ""));
        }
        text
    }

    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let header = HEADER.map(|header| header.trim().replace('\n', " "));
        let mut text = format!("{}\n\n", self.heading());
        text.push_str(&line(&header));
        text.push_str(&line(
            &[":--", "--:", "--:", "--:", "--:", "--:", "--:", ":--"].map(str::to_owned),
        ));
        for row in &self.rows {
            // A bare asterisk would start an emphasis.
            text.push_str(&line(&row.cells()).replace('*', "\\*"));
        }
        let _ = writeln!(text, "\n\\{MARKS}");
        for note in self.notes() {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }

    fn table(&self) -> String {
        let mut table = table::table(HEADER, 0..0);
        table.add_rows(self.rows.iter().map(SweepRow::cells));
        table::dense(&mut table, 1..HEADER.len() - 1);
        table::shown(&table, &SPARED)
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
                "The plain run was not measured: `over plain` is against the predicted {}.",
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
