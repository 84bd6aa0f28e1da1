//! The largest batch or depth that fits, by planning.
//!
//! | module | what it owns |
//! |---|---|
//! | [`subject`] | a config with one size left open, and its counted step for every size |
//! | [`MaxRecord`] | what was found; `text` shows it |

pub mod subject;
mod text;

use rekindle::{meter::Count, record::Update};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{fit::ScheduleKind, session::Planned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::subject::Varied;

/// Format tag of [`MaxRecord`].
pub const MAX_FORMAT: &str = "rekindle-max/2";

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
    pub confirmed: Option<Confirmed>,
}

/// The largest size that fits in one way to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Largest {
    /// How it runs.
    pub way: ScheduleKind,
    /// The size.
    pub size: usize,
    /// When it updates parameters.
    pub update: Update,
    /// Segments of its schedule; `null` where stages are recomputed in another way.
    pub segments: Option<usize>,
    /// Its peak.
    pub predicted_peak_bytes: Bytes,
    /// Share by which a step takes longer than the same size's without recomputing.
    pub overhead: f64,
    /// Of the peak: parameters, optimizer state, input, and whatever else always stays.
    pub fixed_bytes: Bytes,
    /// Of the peak: gradients of parameters.
    pub gradient_bytes: Bytes,
    /// The rest of the peak.
    pub activation_bytes: Bytes,
}

impl Largest {
    /// A size with its plan.
    pub fn new(way: ScheduleKind, size: usize, (plan, update): &(Planned, Update)) -> Self {
        let (_, parts) = plan.at_peak;
        let (fixed_bytes, gradient_bytes) = (parts.fixed, parts.parameter_gradients);
        Self {
            way,
            size,
            update: *update,
            segments: plan.segments.as_ref().map(Vec::len),
            predicted_peak_bytes: plan.peak,
            overhead: plan.step.0 / plan.plain_step.0 - 1.0,
            fixed_bytes,
            gradient_bytes,
            activation_bytes: plan.peak - fixed_bytes - gradient_bytes,
        }
    }
}

/// One real run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Confirmed {
    /// The size that was run.
    pub size: usize,
    /// Its predicted peak.
    pub predicted_peak_bytes: Bytes,
    /// Its measured peak.
    pub measured_peak_bytes: Bytes,
    /// Time of its last step.
    pub measured_step_s: Seconds,
    /// Whether the peak stayed within the budget.
    pub fits: bool,
}

impl MaxRecord {
    /// The largest size of a way.
    pub fn of(&self, way: ScheduleKind) -> Option<&Largest> {
        self.largest.iter().find(|largest| largest.way == way)
    }
}
