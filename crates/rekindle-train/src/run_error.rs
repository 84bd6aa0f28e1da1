//! Errors of a training.

use std::path::PathBuf;

use rekindle_plan::{Bytes, PlanError, Planner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    device::{Unavailable, device_fault, refused_kernel},
    file_error::FileError,
    model::shape::ShapeError,
    nonfinite::NonFinite,
    session::OutOfMemory,
    shortage::speaks_of_memory,
};
use rekindle::{
    record::{
        RecordError,
        driver::{catch, held_at},
    },
    reduce::ReduceError,
};

/// The error of a run that could not be started or finished, or of a step.
#[derive(Debug, PartialEq, Error)]
pub enum RunError {
    /// A layer cannot take its input.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// No plan fits.
    #[error(transparent)]
    Infeasible(Infeasible),
    /// A plan cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The given schedule exceeds its budget.
    #[error(
        "this plan needs {peak} on this device, over its budget of {budget}: `rekindle plan` makes another"
    )]
    OverBudget {
        /// Its peak on the chain measured now.
        peak: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The plan needs more memory than is free.
    #[error("the plan needs {peak}, but only {free}{} is free", of_total(.total))]
    NotEnough {
        /// Its peak.
        peak: Bytes,
        /// Free memory.
        free: Bytes,
        /// Total memory, if known.
        total: Option<Bytes>,
    },
    /// One tensor is larger than any buffer of the device. No plan changes that.
    #[error("{tensor} needs {bytes} in one buffer; this device allows {limit}")]
    TensorTooLarge {
        /// The largest tensor, in words.
        tensor: String,
        /// Whether it is a parameter, or the gradient of one.
        is_weight: bool,
        /// Its bytes.
        bytes: Bytes,
        /// The limit for one buffer.
        limit: Bytes,
    },
    /// Memory ran out in a step, and no smaller plan helps.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// Settings do not go together, or not with so many ranks; or a plan was made for another model.
    #[error("{0}")]
    Refused(String),
    /// The next batch could not be built.
    #[error("the next batch cannot be built: {0}")]
    Batch(String),
    /// A step could not be recorded, or not run.
    #[error(transparent)]
    Recorded(#[from] RecordError),
    /// The loss or a gradient is not finite, and the settings stop the run: the state is that before the step.
    #[error("{}", .0.ended())]
    NonFinite(Box<NonFinite>),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] Unavailable),
    /// The run's folder, its data, or the weights to start from, cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The run has done all requested steps; its record has the results.
    #[error(
        "{}: all {steps} steps are done, so nothing is left to do; `--steps N` trains further", path.display()
    )]
    Finished {
        /// The run's folder.
        path: PathBuf,
        /// Steps asked for.
        steps: usize,
    },
    /// Another rank failed and reports the error: a step has no effect, or all ranks end.
    #[error("another rank failed")]
    OtherRank,
}

/// A budget that no plan fits.
#[derive(Debug, Clone, PartialEq, Error, Serialize, Deserialize, JsonSchema)]
#[error(
    "{} {budget} ({} bytes): the smallest workable budget is {smallest} ({} bytes){}",
    no_fit(*planner), budget.0, smallest.0, held_at(floor.as_deref())
)]
pub struct Infeasible {
    /// The planner that was asked.
    pub planner: Planner,
    /// The budget, everything counted; without one the free memory.
    #[serde(rename = "budget_bytes")]
    pub budget: Bytes,
    /// The smallest budget that this planner fits; by shapes, the smallest that it is sure to.
    #[serde(rename = "smallest_budget_bytes")]
    pub smallest: Bytes,
    /// The smallest budget that any planner fits.
    #[serde(rename = "smallest_budget_of_all_planners_bytes")]
    pub smallest_of_all: Bytes,
    /// Where the plan of that planner has its peak, such as `while it makes the gradient of ..`; `null` if that is not known.
    pub floor: Option<String>,
    /// The largest batch that is sure to work within the budget, by its shapes; `null` where the step was measured, or not even
    /// 1 is sure to.
    #[serde(default)]
    pub batch: Option<usize>,
}

/// The start of the error message, which names the plans that do not fit.
fn no_fit(planner: Planner) -> String {
    match planner {
        Planner::None => "the plain run does not fit".to_owned(),
        Planner::Auto => "no plan fits".to_owned(),
        _ => format!("no plan of `{planner}` fits"),
    }
}

/// The error of a planner, or of a given plan; the smallest budget is so much more, and `of_all` that of all planners.
pub(crate) fn refused(
    error: RecordError,
    planner: Option<Planner>,
    more: Bytes,
    of_all: impl FnOnce() -> Option<Bytes>,
) -> RunError {
    match error {
        RecordError::Infeasible {
            budget,
            smallest,
            floor,
        } => match planner {
            Some(planner) => {
                let of_all = match planner {
                    Planner::Auto => None,
                    _ => of_all(),
                };
                RunError::Infeasible(Infeasible {
                    planner,
                    budget,
                    smallest: smallest + more,
                    smallest_of_all: of_all.map_or(smallest, |all| all.min(smallest)) + more,
                    floor,
                    batch: None,
                })
            }
            None => RunError::OverBudget {
                peak: smallest,
                budget,
            },
        },
        RecordError::Plan(error) => match *error {
            error @ PlanError::Graph(_) => RecordError::from(error).into(),
            error => error.into(),
        },
        error => error.into(),
    }
}

fn of_total(total: &Option<Bytes>) -> String {
    total.map_or_else(String::new, |total| format!(" of {total}"))
}

impl RunError {
    /// Runs `call`, in which burn reads a device's values and reports failures by panics. Any other panic propagates.
    pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Self> {
        let of_device = |message: &str| {
            speaks_of_memory(message)
                || device_fault(message).is_some()
                || refused_kernel(message).is_some()
        };
        catch(call).map_err(|message| match of_device(&message) {
            true => RecordError::Device(message).into(),
            false => panic!("{message}"),
        })
    }

    /// Whether ranks can no longer communicate.
    pub(super) fn is_of_network(&self) -> bool {
        // All ranks have found that they differ.
        let differ = |error: &ReduceError| matches!(error, ReduceError::Differ { .. });
        matches!(self.of_step(), Some(RecordError::Reduce(error)) if !differ(error))
    }

    /// Whether another rank reports the error.
    pub(super) fn is_of_another_rank(&self) -> bool {
        matches!(self, Self::OtherRank)
            || matches!(self.of_step(), Some(RecordError::OtherRank { .. }))
    }

    /// The error of the recorded step, also where some parameters were updated before it.
    pub(super) fn of_step(&self) -> Option<&RecordError> {
        match self {
            Self::Recorded(RecordError::PartlyUpdated { source, .. }) => Some(&**source),
            Self::Recorded(error) => Some(error),
            _ => None,
        }
    }

    /// Whether some parameters are updated and others not: training cannot continue from such a model.
    pub(super) fn is_partly_updated(&self) -> bool {
        matches!(self, Self::Recorded(RecordError::PartlyUpdated { .. }))
    }
}
