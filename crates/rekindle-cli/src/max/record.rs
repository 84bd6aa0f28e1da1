//! The results: one record from which text and JSON are made.

use rekindle::{meter::Count, record::Update};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::session::Planned;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rekindle_train::fit::ScheduleKind;

use super::subject::Varied;

/// Format tag of [`MaxRecord`].
pub const MAX_FORMAT: &str = "rekindle-max/1";

/// Minimum ratio of two sizes for which a technique is said to make a difference.
const DIFFERENCE: f64 = 1.1;

/// The largest sizes that fit.
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
    /// Whether the budget was given; else it is what the device has, or on the CPU what is free.
    pub budget_asked: bool,
    /// Which bytes the budget bounds.
    pub count: Count,
    /// The longest step that counts as fitting, in plain steps.
    pub slowdown: f64,
    /// What is varied.
    pub varied: Varied,
    /// Samples in each step; `null` where they are what is varied.
    pub batch: Option<usize>,
    /// Whether the answers come from measured stages; else from stages counted from shapes.
    pub measured: bool,
    /// Why the answers are not measured, in words; `null` where they are.
    pub not_measured_because: Option<String>,
    /// The largest size for each way to run it, where one fits.
    pub largest: Vec<Largest>,
    /// The largest size under a plan with the other update, counted from shapes: with `in-backward` where the config has
    /// `after`, and with `after` where the plan needs the other. `null` elsewhere, where none fits, and where that update is
    /// refused.
    pub with_other_update: Option<usize>,
    /// What lets a plan reach further than the plain run.
    pub lever: Difference,
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
    /// Segments of its schedule; `null` for nested schedules.
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

/// What lets a plan reach further than the plain run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Recomputing activations.
    Checkpointing,
    /// Updating parameters in the backward pass.
    UpdateInBackward,
    /// Nothing: what must be there anyway takes nearly all.
    None,
    /// Not memory: the largest size that is looked for fits plain.
    Limit,
    /// Not even size 1 fits.
    NothingFits,
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

    /// Determines which technique made the difference.
    pub fn judge(&mut self) {
        let further = |size: usize, than: usize| size as f64 >= DIFFERENCE * than as f64;
        self.lever = match (self.of(ScheduleKind::Plain), self.of(ScheduleKind::Plan)) {
            (_, None) => Difference::NothingFits,
            (Some(plain), _) if plain.size >= self.varied.limit => Difference::Limit,
            (plain, Some(plan)) => {
                let plain = plain.map_or(0, |plain| plain.size);
                let after = match plan.update {
                    Update::After => plan.size,
                    Update::InBackward => self.with_other_update.unwrap_or(0),
                };
                if further(after, plain) && after > 0 {
                    Difference::Checkpointing
                } else if further(plan.size, plain) {
                    Difference::UpdateInBackward
                } else {
                    Difference::None
                }
            }
        };
    }

    /// Whether an update in the backward pass, which the config rules out, would reach further than a plan does.
    pub fn update_would_help(&self) -> Option<usize> {
        let plan = self.of(ScheduleKind::Plan);
        let reached = plan.map_or(0, |plan| plan.size);
        self.with_other_update
            .filter(|_| plan.is_none_or(|plan| plan.update == Update::After))
            .filter(|&size| size as f64 >= DIFFERENCE * reached.max(1) as f64)
    }
}
