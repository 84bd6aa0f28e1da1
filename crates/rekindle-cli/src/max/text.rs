//! The largest sizes, for people.

use std::fmt::Write;

use rekindle::record::Update;
use rekindle_train::fit::ScheduleKind;

use super::{Largest, MaxRecord};
use crate::{
    summary::error,
    table::{self, Cell, Table},
    terminal,
};

impl MaxRecord {
    /// The verdict, the table, and how to run it.
    pub fn text(&self) -> String {
        let verdict = terminal::wrapped(&self.verdict(), "");
        let mut text = format!("{verdict}\n\n{}\n", self.table());
        if let Some(limit) = self.limit() {
            let _ = writeln!(text, "\n{}", terminal::wrapped(&limit, ""));
        }
        if let Some(confirmed) = &self.confirmed {
            let (predicted, measured) = (confirmed.plan.predicted_peak, confirmed.measured.peak);
            let fits = measured <= self.budget_bytes;
            let said = format!(
                "It ran: peak predicted {predicted}, measured {measured} ({}), {} {}.",
                error(predicted.0 as f64, measured.0 as f64),
                if fits { "within" } else { "ABOVE" },
                self.budget_bytes,
            );
            let _ = writeln!(text, "\n{}", terminal::wrapped(&said, ""));
        }
        if let Some(run) = &self.run {
            let _ = writeln!(text, "\nRun it:\n  {run}");
        }
        text
    }

    fn verdict(&self) -> String {
        let (name, of) = (self.varied.lever.name(), &self.config);
        let (budget, device) = (self.budget_bytes, &self.device);
        match self.of(ScheduleKind::Plan) {
            Some(plan) => format!(
                "The largest {name} of {of} in {budget} on {device} is {}, at most {}x the plain step.",
                plan.size, self.slowdown
            ),
            None => format!("Not even {name} 1 of {of} fits {budget} on {device}."),
        }
    }

    /// What ended the search, where that is not memory.
    fn limit(&self) -> Option<String> {
        let plan = self.of(ScheduleKind::Plan)?;
        (plan.size >= self.varied.limit)
            .then(|| format!("The limit is {}, not memory.", self.varied.limited_by))
    }

    fn table(&self) -> Table {
        let size = self.varied.lever.name();
        let header = format!("|{size}|peak|fixed|gradients|activations|step|update");
        let mut table = table::table(&header, 1..7);
        for way in ScheduleKind::ALL {
            match self.of(way) {
                Some(largest) => table.add_row(cells(largest)),
                None => table.add_row([way.name(), "none"]),
            }
        }
        table
    }
}

fn cells(largest: &Largest) -> [Cell; 8] {
    let plan = &largest.plan;
    let way = match (largest.way, plan.segments.as_ref().map(Vec::len)) {
        (ScheduleKind::Segments, Some(segments @ 2..)) => format!("{segments} segments"),
        (way, _) => way.name().to_owned(),
    };
    let (fixed, gradients) = (largest.at_peak.fixed, largest.at_peak.parameter_gradients);
    let update = match plan.update {
        Update::After => "after",
        Update::InBackward => "in backward",
    };
    [
        way.into(),
        largest.size.into(),
        Cell::bytes(plan.predicted_peak),
        Cell::bytes(fixed),
        Cell::bytes(gradients),
        Cell::bytes(plan.predicted_peak - fixed - gradients),
        format!("{:.2}x", plan.slowdown()).into(),
        update.into(),
    ]
}
