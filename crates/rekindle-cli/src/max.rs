//! The largest batch or depth that fits: what was found, as JSON and for people.

use std::fmt::Write;

use rekindle::{
    meter::Count,
    record::{PlanSummary, Update},
};
use rekindle_plan::{Bytes, Parts};
use rekindle_train::{fit::ScheduleKind, record::Ran};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    args::Lever,
    summary::error,
    table::{self, Cell, Table},
    terminal,
};

/// Format tag of [`MaxRecord`].
pub const MAX_FORMAT: &str = "rekindle-max/3";

/// The largest sizes that fit, counted from shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MaxRecord {
    /// [`MAX_FORMAT`].
    pub format: String,
    /// The config's file.
    pub config: String,
    /// Where it is to run.
    pub device: String,
    /// The largest peak to allow.
    pub budget_bytes: Bytes,
    /// Which bytes the budget bounds.
    pub count: Count,
    /// The longest step that counts as fitting, in plain steps.
    pub slowdown: f64,
    /// What is varied.
    pub varied: Varied,
    /// Samples in each step; `null` where they are what is varied.
    pub batch: Option<usize>,
    /// The largest size for each way to run it, where one fits.
    pub largest: Vec<Largest>,
    /// The command that trains the largest size under a plan; `null` where none fits.
    pub run: Option<String>,
    /// A run of the largest size under a plan; `null` without `--confirm`.
    pub confirmed: Option<Ran>,
}

/// What is varied, between which bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Varied {
    /// What is varied.
    pub lever: Lever,
    /// The config's size.
    pub configured: usize,
    /// The largest size that is tried.
    pub limit: usize,
    /// Why no larger size is tried, in words.
    pub limited_by: String,
}

/// The largest size that fits in one way to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Largest {
    /// How it runs.
    pub way: ScheduleKind,
    /// The size.
    pub size: usize,
    /// Its plan. Times are those of a nominal machine: of use only in proportion to each other.
    #[serde(flatten)]
    pub plan: PlanSummary,
    /// What is held at the peak.
    pub at_peak: Parts,
}

impl MaxRecord {
    /// The largest size of a way.
    fn of(&self, way: ScheduleKind) -> Option<&Largest> {
        self.largest.iter().find(|largest| largest.way == way)
    }

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
