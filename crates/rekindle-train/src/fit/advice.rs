//! Whether a model fits a limit, and which changes would make it fit.

use std::fmt;

use rekindle_plan::{Bytes, PlanError, Planner, Request};
use schemars::JsonSchema;
use serde::Serialize;

use super::{known::Known, schedule_kind::spread, search::largest};
use crate::{
    Estimated,
    session::{MeasuredStep, Planned, RunError},
    settings::TrainSettings,
};

/// The most memory that there is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Limit {
    /// `budget`, or the device's name.
    pub of: String,
    /// Bytes that a step may take.
    pub bytes: Bytes,
}

impl Limit {
    /// Marks a limit that was requested.
    pub const BUDGET: &str = "budget";
}

/// Whether a model fits, and how.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Advice {
    /// The memory that a step must fit.
    limit: Limit,
    /// The plain step's peak.
    needs_bytes: Bytes,
    /// Whether the plain step fits, with 1% of the limit held back.
    fits_plain: bool,
    /// The fewest equal segments that fit, of up to 24 numbers of them; `null` where plain fits, or none do.
    segments: Option<Fit>,
    /// The fastest plan that fits; `null` where plain fits, or none does.
    optimal: Option<Fit>,
    /// The smallest budget that any plan fits; `null` where a plan fits the limit.
    smallest_budget_bytes: Option<Bytes>,
    /// Bytes of the optimizer's step, which no schedule lowers.
    floor_bytes: Bytes,
    /// The largest smaller batch that fits, within 2%; `null` where this one fits, or none does.
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
    /// Looks for what fits. A share of the limit is held back, as when a plan is made to be run. `found` is what the
    /// optimal planner finds, where it has been asked already.
    ///
    /// # Errors
    ///
    /// If the step cannot be planned.
    pub fn new(
        known: &Known<'_>,
        plain: &Planned,
        limit: Limit,
        found: Option<&Result<Planned, PlanError>>,
    ) -> Result<Self, RunError> {
        let step = &known.step;
        let within = |planner| request(planner, limit.bytes);
        let mut advice = Self {
            needs_bytes: plain.peak,
            fits_plain: step.try_plan(&within(Planner::None))?.is_ok(),
            segments: None,
            optimal: None,
            smallest_budget_bytes: None,
            floor_bytes: known.estimate.profile.update_bytes,
            fitting_batch: None,
            limit: limit.clone(),
        };
        if advice.fits_plain {
            return Ok(advice);
        }
        let fit = |plan: &Planned| Fit {
            segments: plan.segments.as_ref().map(Vec::len),
            peak_bytes: plan.peak,
            step_ratio: plan.step.0 / plain.step.0,
        };
        for segments in spread(step.chain.stages.len()) {
            let plan = step.try_plan(&within(Planner::Segments(Some(segments))))?;
            if let Ok(plan) = plan {
                advice.segments = Some(fit(&plan));
                break;
            }
        }
        let found = match found {
            Some(found) => found.clone(),
            None => known.plan(&within(Planner::Optimal))?,
        };
        match found {
            Ok(plan) => advice.optimal = Some(fit(&plan)),
            Err(PlanError::Infeasible {
                smallest_of_all, ..
            }) => {
                advice.smallest_budget_bytes = Some(smallest_of_all);
                advice.fitting_batch = fitting_batch(known, limit.bytes, smallest_of_all)?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(advice)
    }
}

fn request(planner: Planner, limit: Bytes) -> Request {
    Request {
        planner,
        ..Request::within(limit)
    }
}

/// The largest batch below the settings' for which a plan over stages fits. Bytes are approximately linear in it, so
/// the first guess is close.
fn fitting_batch(
    known: &Known<'_>,
    limit: Bytes,
    smallest: Bytes,
) -> Result<Option<usize>, RunError> {
    let settings = known.estimated.settings;
    let parts = settings.accumulate.max(1);
    let mut fits = |samples: usize| -> Result<bool, RunError> {
        let settings = TrainSettings {
            batch: samples * parts,
            ..settings.clone()
        };
        let estimated = Estimated {
            settings: &settings,
            ..known.estimated
        };
        let step: MeasuredStep = estimated.step()?;
        Ok(step.try_plan(&request(Planner::Optimal, limit))?.is_ok())
    };
    let samples = settings.micro_batch();
    let fixed = known.estimate.profile.graph.fixed_bytes - known.estimate.input_bytes;
    let share = (limit - fixed).0 as f64 / (smallest - fixed).0.max(1) as f64;
    let guess = (samples as f64 * share) as usize;
    let found = largest(samples.saturating_sub(1), guess, 1.1, 2e-2, &mut fits)?;
    Ok(found.map(|samples| samples * parts))
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, .. } = self;
        let has = match limit.of.as_str() {
            Limit::BUDGET => format!("The budget is {}", limit.bytes),
            device => format!("The device {device} has {}", limit.bytes),
        };
        writeln!(
            f,
            "The plain run needs {} ({}), and a reserve of 1%.\n{has} ({}).",
            self.needs_bytes,
            self.needs_bytes.decimal(),
            limit.bytes.decimal()
        )?;
        if self.fits_plain {
            return f.write_str("The model fits without checkpointing.");
        }
        match (self.segments, self.optimal) {
            (Some(equal), Some(best)) if equal.step_ratio - best.step_ratio < 0.05 => {
                write!(f, "The model fits with {}.", equal.in_words())
            }
            (Some(equal), Some(best)) => write!(
                f,
                "The model fits with {},\nand with a plan of single operations at about {:.1}x.",
                equal.in_words(),
                best.step_ratio
            ),
            (Some(only), None) => write!(f, "The model fits with {}.", only.in_words()),
            (None, Some(only)) => write!(
                f,
                "The model fits with a plan of single operations at about {:.1}x the step time.\nNo number of equal segments fits.",
                only.step_ratio
            ),
            (None, None) => {
                let least = self.smallest_budget_bytes.unwrap_or_default();
                writeln!(
                    f,
                    "Nothing fits: the smallest workable budget is {least}, the reserve included."
                )?;
                match self.fitting_batch {
                    Some(batch) => write!(f, "`--batch {batch}` would fit."),
                    None => write!(
                        f,
                        "No smaller batch would fit: the optimizer's step alone takes {}.",
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
            Some(segments) => format!(
                "{segments} segments at about {:.1}x the step time",
                self.step_ratio
            ),
            None => format!(
                "a nested plan at about {:.1}x the step time",
                self.step_ratio
            ),
        }
    }
}
