//! Progress while rows run.

use std::time::Instant;

use indicatif::{HumanDuration, ProgressBar};

use super::{SweepRecord, SweepRow};
use crate::{progress::style, terminal};

/// A bar on a terminal, a line for each row elsewhere.
pub struct RowProgress {
    bar: Option<ProgressBar>,
    started: Instant,
}

impl RowProgress {
    pub fn new() -> Self {
        Self {
            bar: terminal::bar(style("{spinner} {msg}{kernels}")),
            started: Instant::now(),
        }
    }

    /// The stages are measured, which is no row and no measure for the time that rows take.
    pub fn measuring(&self) {
        match &self.bar {
            Some(bar) => bar.set_message("measuring the stages"),
            None => note!("measuring the stages"),
        }
    }

    pub fn starts(&mut self, done: usize, of: usize) {
        if done == 0 {
            self.started = Instant::now();
        }
        if let Some(bar) = &self.bar {
            bar.set_style(style("{pos}/{len} rows [{bar:20}] {elapsed} {msg}"));
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        }
    }

    pub fn ended(&self, record: &SweepRecord) {
        let (done, of) = (record.rows.len(), record.rows_asked);
        let rest = of.saturating_sub(done);
        let left = self
            .started
            .elapsed()
            .div_f64(done as f64)
            .mul_f64(rest as f64);
        let left = match rest {
            0 => String::new(),
            _ => format!(", about {} left", HumanDuration(left)),
        };
        let last = record.rows.last().map(SweepRow::line).unwrap_or_default();
        match &self.bar {
            Some(bar) => {
                bar.set_position(done as u64);
                bar.set_message(format!("{last}{left}"));
            }
            None => note!("{done}/{of} {last}{left}"),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
