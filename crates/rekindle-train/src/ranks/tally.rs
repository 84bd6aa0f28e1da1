//! Counts of predictions, on one rank and on all.

use serde::{Deserialize, Serialize};

use crate::{finite, loss::Correct, run_error::RunError};

/// What predictions came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) samples: usize,
    pub(crate) predictions: usize,
    /// `None` where there are no classes.
    pub(crate) correct: Option<i64>,
    /// The sum of their losses.
    pub(crate) loss: f64,
}

impl Tally {
    pub(super) fn and(self, other: Self) -> Self {
        let correct = match (self.correct, other.correct) {
            (Some(one), Some(other)) => Some(one + other),
            // A rank without samples has counted nothing.
            (one, other) => one.or(other),
        };
        Self {
            samples: self.samples + other.samples,
            predictions: self.predictions + other.predictions,
            correct,
            loss: self.loss + other.loss,
        }
    }

    /// Adds a number of correct predictions, read from the device.
    pub(crate) fn add_correct(&mut self, correct: Correct) -> Result<(), RunError> {
        if let Some(correct) = correct {
            *self.correct.get_or_insert(0) += finite::read(correct)? as i64;
        }
        Ok(())
    }

    /// Share of correct predictions.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        let correct = self.correct?;
        Some(correct as f64 / self.predictions.max(1) as f64)
    }
}
