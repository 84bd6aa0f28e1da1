//! Which numbers a chain may hold.

use std::fmt;

use super::costs::Chain;
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// The `format` of a chain file.
pub const FORMAT: &str = "rekindle-chain/1";

/// The sum of all sizes of a chain stays at or below this, so that no sum of live sizes can overflow 64 bits.
const MOST_BYTES: u64 = 1 << 60;

/// Where in a chain a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The chain itself.
    Chain,
    /// A stage, by number and name.
    Stage(usize, String),
    /// An alternative of a stage: the stage's number and name, and the alternative's number from 1 and name.
    Alternative(usize, String, usize, String),
    /// The loss.
    Loss,
    /// The optimizer.
    Optimizer,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Chain => f.write_str("chain"),
            Place::Stage(stage, name) => write!(f, "stage {stage} ({name:?})"),
            Place::Alternative(stage, name, alternative, way) => {
                write!(
                    f,
                    "stage {stage} ({name:?}), alternative {alternative} ({way:?})"
                )
            }
            Place::Loss => f.write_str("loss"),
            Place::Optimizer => f.write_str("optimizer"),
        }
    }
}

/// Why a chain is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChainError {
    /// The text is not JSON, lacks a field, has an unknown one, or one of the wrong type.
    #[error("{message}")]
    Json {
        /// What is wrong, with line and column.
        message: String,
        /// The line, from 1; 0 where it is not known.
        line: usize,
        /// The column, from 1; 0 where it is not known.
        column: usize,
    },
    /// The file is of another format, or of another version of it.
    #[error("format is {found:?}, expected {:?}", FORMAT)]
    Format {
        /// The file's `format`.
        found: String,
    },
    /// A chain has at least one stage.
    #[error("the chain has no stages")]
    NoStages,
    /// A name with a control character, which could rewrite what a terminal shows.
    #[error("{place}: the name holds a control character")]
    Name {
        /// Whose name it is.
        place: Place,
    },
    /// A size that is negative, not whole, or more than any machine has.
    #[error("{place}: {field} is {value}, expected a whole number of bytes from 0 to 2^60")]
    Size {
        /// Where it stands.
        place: Place,
        /// The field.
        field: &'static str,
        /// The value as it was given.
        value: String,
    },
    /// A time that is negative, NaN or infinite.
    #[error("{place}: {field} is {value}, expected a finite number of seconds, 0 or more")]
    Time {
        /// Where it stands.
        place: Place,
        /// The field.
        field: &'static str,
        /// The value as it was given.
        value: f64,
    },
    /// The output is part of what a tracked forward keeps.
    #[error("{place}: saved_bytes is {}, less than the output_bytes of {} that it includes", saved.0, output.0)]
    SavedBelowOutput {
        /// The stage or the alternative.
        place: Place,
        /// Its `saved_bytes`.
        saved: Bytes,
        /// The stage's `output_bytes`.
        output: Bytes,
    },
    /// All sizes together are more than 2^60 bytes.
    #[error("the sizes of the chain add up to more than 2^60 bytes")]
    TooLarge,
    /// All times together are not a finite number.
    #[error("the times of the chain add up to infinity")]
    TooLong,
}

impl Chain {
    /// Checks every value: at least one stage, times finite and not negative, saved bytes at least the output's, and
    /// sums that cannot overflow.
    ///
    /// # Errors
    /// The first wrong value, with its stage and field.
    pub fn validate(&self) -> Result<(), ChainError> {
        if self.stages.is_empty() {
            return Err(ChainError::NoStages);
        }
        let mut sums = Sums::default();
        sums.size(Place::Chain, "input_bytes", self.input_bytes)?;
        sums.size(Place::Chain, "fixed_bytes", self.fixed_bytes)?;
        for (index, stage) in self.stages.iter().enumerate() {
            let place = || Place::Stage(index, stage.name.clone());
            is_plain(place(), &stage.name)?;
            sums.time(place(), "forward_s", stage.forward_s)?;
            sums.time(place(), "backward_s", stage.backward_s)?;
            sums.size(place(), "output_bytes", stage.output_bytes)?;
            sums.size(place(), "saved_bytes", stage.saved_bytes)?;
            sums.size(place(), "forward_temp_bytes", stage.forward_temp_bytes)?;
            sums.size(place(), "tracked_temp_bytes", stage.tracked_temp_bytes)?;
            sums.size(place(), "backward_temp_bytes", stage.backward_temp_bytes)?;
            sums.size(place(), "param_bytes", stage.param_bytes)?;
            sums.size(place(), "grad_bytes", stage.grad_bytes)?;
            saved_holds_output(place(), stage.saved_bytes, stage.output_bytes)?;
            for (number, way) in stage.alternatives.iter().enumerate() {
                let place =
                    || Place::Alternative(index, stage.name.clone(), number + 1, way.name.clone());
                is_plain(place(), &way.name)?;
                sums.time(place(), "forward_s", way.forward_s)?;
                sums.time(place(), "backward_s", way.backward_s)?;
                sums.size(place(), "saved_bytes", way.saved_bytes)?;
                sums.size(place(), "tracked_temp_bytes", way.tracked_temp_bytes)?;
                sums.size(place(), "backward_temp_bytes", way.backward_temp_bytes)?;
                saved_holds_output(place(), way.saved_bytes, stage.output_bytes)?;
            }
        }
        sums.time(Place::Loss, "forward_s", self.loss.forward_s)?;
        sums.time(Place::Loss, "backward_s", self.loss.backward_s)?;
        sums.size(
            Place::Loss,
            "forward_temp_bytes",
            self.loss.forward_temp_bytes,
        )?;
        sums.size(
            Place::Loss,
            "backward_temp_bytes",
            self.loss.backward_temp_bytes,
        )?;
        sums.time(Place::Optimizer, "step_s", self.optimizer.step_s)?;
        sums.size(Place::Optimizer, "temp_bytes", self.optimizer.temp_bytes)?;
        sums.size(Place::Optimizer, "state_bytes", self.optimizer.state_bytes)?;
        if sums.bytes > Bytes(MOST_BYTES) {
            return Err(ChainError::TooLarge);
        }
        if !sums.seconds.0.is_finite() {
            return Err(ChainError::TooLong);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Sums {
    bytes: Bytes,
    seconds: Seconds,
}

impl Sums {
    fn size(&mut self, place: Place, field: &'static str, value: Bytes) -> Result<(), ChainError> {
        if value.0 > MOST_BYTES {
            return Err(ChainError::Size {
                place,
                field,
                value: value.0.to_string(),
            });
        }
        self.bytes += value;
        Ok(())
    }

    fn time(
        &mut self,
        place: Place,
        field: &'static str,
        value: Seconds,
    ) -> Result<(), ChainError> {
        if !value.0.is_finite() || value.0 < 0.0 {
            return Err(ChainError::Time {
                place,
                field,
                value: value.0,
            });
        }
        self.seconds += value;
        Ok(())
    }
}

fn is_plain(place: Place, name: &str) -> Result<(), ChainError> {
    match name.chars().any(char::is_control) {
        true => Err(ChainError::Name { place }),
        false => Ok(()),
    }
}

fn saved_holds_output(place: Place, saved: Bytes, output: Bytes) -> Result<(), ChainError> {
    if saved < output {
        Err(ChainError::SavedBelowOutput {
            place,
            saved,
            output,
        })
    } else {
        Ok(())
    }
}
