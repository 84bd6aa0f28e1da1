//! The largest batch or depth that fits: what was found, which `text` shows.

mod text;

use rekindle::{meter::Count, record::PlanSummary};
use rekindle_plan::{Bytes, Parts};
use rekindle_train::{fit::ScheduleKind, record::Ran};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::args::Lever;

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
    pub fn of(&self, way: ScheduleKind) -> Option<&Largest> {
        self.largest.iter().find(|largest| largest.way == way)
    }
}
