//! How much memory a step may take: bytes, or a share of what the plain step takes.

use std::str::FromStr;

use rekindle_plan::Bytes;

use super::RecordError;
use crate::size::Size;

/// A budget as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Bytes.
    Bytes(Bytes),
    /// Percent of the plain step's predicted peak, [`StepPlan::plain_peak`](super::StepPlan::plain_peak): all that the
    /// process holds counts in it, as it does in the budget.
    OfPlain(f64),
}

impl Budget {
    /// The bytes, where the plain step's peak is `plain`.
    pub(super) fn of(self, plain: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::OfPlain(percent) => Bytes((plain.0 as f64 * percent / 100.0) as u64),
        }
    }

    /// Puts the plain step's peak into the error of a share that no plan fits.
    pub(super) fn explain(self, error: RecordError, plain: Bytes) -> RecordError {
        match (self, error) {
            (Self::OfPlain(percent), RecordError::Infeasible { budget, smallest }) => {
                RecordError::InfeasibleShare {
                    percent,
                    plain,
                    budget,
                    smallest,
                }
            }
            (_, error) => error,
        }
    }
}

/// A number of bytes, or a text that says a budget: a size with its unit such as `"2GiB"`, or a share of the plain
/// step's predicted peak such as `"60%"`.
pub trait IntoBudget {
    /// The budget.
    ///
    /// # Errors
    ///
    /// If a text is no budget.
    fn into_budget(self) -> Result<Budget, RecordError>;
}

impl IntoBudget for Budget {
    fn into_budget(self) -> Result<Budget, RecordError> {
        Ok(self)
    }
}

impl IntoBudget for Bytes {
    fn into_budget(self) -> Result<Budget, RecordError> {
        Ok(Budget::Bytes(self))
    }
}

impl IntoBudget for &str {
    fn into_budget(self) -> Result<Budget, RecordError> {
        match Size::from_str(self) {
            Ok(Size::Bytes(bytes)) => Ok(Budget::Bytes(bytes)),
            Ok(Size::Percent(percent)) => Ok(Budget::OfPlain(percent)),
            Err(problem) => Err(RecordError::Size {
                text: self.to_owned(),
                problem: problem.to_string(),
            }),
        }
    }
}
