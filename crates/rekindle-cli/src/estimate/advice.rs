//! Whether a model fits a limit, and what would.

use std::{convert::Infallible, fmt};

use rekindle::profile::{Measured, with_reserve};
use rekindle_plan::{Bytes, Plan, PlanError, PlanRequest, PlannerKind, Seconds, Source, planner};
use rekindle_train::{counted::Counted, settings::TrainSettings};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{failure::Failure, max::search::largest};

/// The most memory that there is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Limit {
    /// `budget`, or the device's name.
    pub of: String,
    /// Bytes that a step may take.
    pub bytes: Bytes,
}

impl Limit {
    /// The limit is one that was asked for.
    pub const BUDGET: &str = "budget";
}

/// Whether a model fits, and how.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Advice {
    /// The memory that a step must fit.
    limit: Limit,
    /// The plain step's peak.
    needs_bytes: Bytes,
    /// Whether the plain step fits, with 3% of the limit held back.
    fits_plain: bool,
    /// The fewest equal segments that fit; `null` where plain fits, or none do.
    segments: Option<Fit>,
    /// The fastest plan that fits; `null` where plain fits, or none does.
    optimal: Option<Fit>,
    /// The smallest budget that any plan fits; `null` where a plan fits the limit.
    smallest_budget_bytes: Option<Bytes>,
    /// Bytes of the optimizer's step, which no schedule lowers.
    floor_bytes: Bytes,
    /// The largest batch that fits; `null` where this one fits, or none does.
    fitting_batch: Option<usize>,
}

/// A plan that fits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
struct Fit {
    /// Number of segments; `null` for nested schedules.
    segments: Option<usize>,
    /// The plan's peak.
    peak_bytes: Bytes,
    /// Estimated step time, as a multiple of the plain step's.
    step_ratio: f64,
}

impl Advice {
    /// Looks for what fits. A share of the limit is held back, as when a plan is made to be run. `known` is what the
    /// optimal planner finds, where it has been asked already.
    pub fn new(
        counted: &Counted<'_>,
        measured: &Measured,
        plain: &Plan,
        limit: Limit,
        known: Option<&Result<Plan, PlanError>>,
    ) -> Result<Self, Failure> {
        let mut advice = Self {
            needs_bytes: plain.peak,
            fits_plain: with_reserve(plain.peak) <= limit.bytes,
            segments: None,
            optimal: None,
            smallest_budget_bytes: None,
            floor_bytes: measured.chain.optimizer_peak(),
            fitting_batch: None,
            limit,
        };
        if advice.fits_plain {
            return Ok(advice);
        }
        let fit = |plan: &Plan| Fit {
            segments: plan.schedule.segments().map(|segments| segments.len()),
            peak_bytes: plan.peak,
            step_ratio: plan.step.0 / plain.step.0,
        };
        advice.segments = fewest_segments(measured, advice.limit.bytes)?.map(|plan| fit(&plan));
        let found = known.cloned();
        match found.unwrap_or_else(|| optimal(measured, advice.limit.bytes)) {
            Ok(plan) => advice.optimal = Some(fit(&plan)),
            Err(PlanError::Infeasible {
                smallest_of_all, ..
            }) => {
                advice.smallest_budget_bytes = Some(smallest_of_all);
                advice.fitting_batch = fitting_batch(counted, advice.limit.bytes);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(advice)
    }
}

fn fewest_segments(measured: &Measured, limit: Bytes) -> Result<Option<Plan>, Failure> {
    let stages = measured.chain.stages.len();
    for segments in 2..=stages {
        let plan = measured
            .costed(Plan {
                planner: PlannerKind::Uniform,
                schedule: planner::uniform(stages, segments)?,
                peak: Bytes(0),
                step: Seconds(0.0),
                source: Source::Uniform { segments },
            })
            .map_err(Failure::other)?;
        if with_reserve(plan.peak) <= limit {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

fn optimal(measured: &Measured, limit: Bytes) -> Result<Plan, PlanError> {
    measured.plan(&PlanRequest {
        planner: PlannerKind::Optimal,
        budget: Some(limit),
        ..PlanRequest::default()
    })
}

/// The largest batch below the settings' that some plan fits: peaks grow with the batch.
fn fitting_batch(counted: &Counted<'_>, limit: Bytes) -> Option<usize> {
    let fits = |samples: usize| {
        let settings = TrainSettings {
            batch: samples * counted.settings.accumulate.max(1),
            ..counted.settings.clone()
        };
        let smaller = Counted {
            settings: &settings,
            ..*counted
        };
        optimal(&smaller.chain(), limit).is_ok()
    };
    let smaller = counted.settings.micro_batch().saturating_sub(1);
    let Ok(found) = largest(smaller, smaller.div_ceil(2), 2.0, 0.0, |samples| {
        Ok::<_, Infallible>(fits(samples))
    });
    found.map(|samples| samples * counted.settings.accumulate.max(1))
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, .. } = self;
        let has = match limit.of.as_str() {
            Limit::BUDGET => format!("the budget is {}", limit.bytes),
            device => format!("{device} has {}", limit.bytes),
        };
        writeln!(
            f,
            "needs {} ({}), and a reserve of 3%; {has} ({})",
            self.needs_bytes,
            self.needs_bytes.decimal(),
            limit.bytes.decimal()
        )?;
        if self.fits_plain {
            return f.write_str("fits without checkpointing");
        }
        match (self.segments, self.optimal) {
            (Some(equal), Some(best)) if equal.step_ratio - best.step_ratio < 0.05 => {
                write!(f, "fits with {}", equal.in_words())
            }
            (Some(equal), Some(best)) => write!(
                f,
                "fits with {}, and with the optimal plan at about {:.1}x",
                equal.in_words(),
                best.step_ratio
            ),
            (Some(only), None) => write!(f, "fits with {}", only.in_words()),
            (None, Some(only)) => write!(
                f,
                "fits with the optimal plan at about {:.1}x time; no number of equal segments fits",
                only.step_ratio
            ),
            (None, None) => {
                let least = self.smallest_budget_bytes.unwrap_or_default();
                writeln!(
                    f,
                    "nothing fits: the smallest workable budget is {least}, the reserve included"
                )?;
                match self.fitting_batch {
                    Some(batch) => write!(f, "`--batch {batch}` would fit, and no larger one"),
                    None => write!(
                        f,
                        "no smaller batch would fit: the optimizer's step alone takes {}",
                        self.floor_bytes
                    ),
                }
            }
        }
    }
}

impl Fit {
    fn in_words(self) -> String {
        match self.segments {
            Some(segments) => format!("{segments} segments at about {:.1}x time", self.step_ratio),
            None => format!("a nested plan at about {:.1}x time", self.step_ratio),
        }
    }
}
