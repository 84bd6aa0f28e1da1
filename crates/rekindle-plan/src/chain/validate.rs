//! Checks the values of a chain.

use std::fmt;

use super::costs::Chain;
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// The `format` of a chain file.
pub const FORMAT: &str = "rekindle-chain/1";

/// The sum of all sizes of a chain stays at or below this, so that no sum of live sizes can overflow 64 bits.
const MOST_BYTES: u64 = 1 << 60;

/// The position of a value in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The chain itself.
    Chain,
    /// A stage, by number and name.
    Stage(usize, String),
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
    /// A size that is larger than any machine's memory.
    #[error("{place}: {field} is {}, expected a whole number of bytes from 0 to 2^60", value.0)]
    Size {
        /// Its position.
        place: Place,
        /// The field.
        field: &'static str,
        /// The value.
        value: Bytes,
    },
    /// A time that is negative, NaN or infinite.
    #[error("{place}: {field} is {value}, expected a finite number of seconds, 0 or more")]
    Time {
        /// Its position.
        place: Place,
        /// The field.
        field: &'static str,
        /// The value as it was given.
        value: f64,
    },
    /// The output is part of what a tracked forward keeps.
    #[error("{place}: saved_bytes is {}, less than the output_bytes of {} that it includes", saved.0, output.0)]
    SavedBelowOutput {
        /// The stage.
        place: Place,
        /// Its `saved_bytes`.
        saved: Bytes,
        /// The stage's `output_bytes`.
        output: Bytes,
    },
    /// The sum of all sizes is more than 2^60 bytes.
    #[error("the sizes of the chain add up to more than 2^60 bytes")]
    TooLarge,
    /// The sum of all times is not finite.
    #[error("the times of the chain add up to infinity")]
    TooLong,
}

impl Chain {
    /// Checks every value: at least one stage, times finite and not negative, saved bytes at least the output's, and
    /// sums that cannot overflow.
    ///
    /// # Errors
    /// The first invalid value, with its stage and field.
    pub fn validate(&self) -> Result<(), ChainError> {
        if self.stages.is_empty() {
            return Err(ChainError::NoStages);
        }
        let mut sums = Sums::default();
        let sizes = [
            ("input_bytes", self.input_bytes),
            ("fixed_bytes", self.fixed_bytes),
        ];
        sums.add(&|| Place::Chain, &[], &sizes)?;
        for (index, stage) in self.stages.iter().enumerate() {
            let place = || Place::Stage(index, stage.name.clone());
            if stage.name.chars().any(char::is_control) {
                return Err(ChainError::Name { place: place() });
            }
            let times = [
                ("forward_s", stage.forward_s),
                ("backward_s", stage.backward_s),
            ];
            let sizes = [
                ("output_bytes", stage.output_bytes),
                ("saved_bytes", stage.saved_bytes),
                ("forward_temp_bytes", stage.forward_temp_bytes),
                ("tracked_temp_bytes", stage.tracked_temp_bytes),
                ("backward_temp_bytes", stage.backward_temp_bytes),
                ("param_bytes", stage.param_bytes),
                ("grad_bytes", stage.grad_bytes),
            ];
            sums.add(&place, &times, &sizes)?;
            if stage.saved_bytes < stage.output_bytes {
                return Err(ChainError::SavedBelowOutput {
                    place: place(),
                    saved: stage.saved_bytes,
                    output: stage.output_bytes,
                });
            }
        }
        let (loss, optimizer) = (&self.loss, &self.optimizer);
        let times = [
            ("forward_s", loss.forward_s),
            ("backward_s", loss.backward_s),
        ];
        let sizes = [
            ("forward_temp_bytes", loss.forward_temp_bytes),
            ("backward_temp_bytes", loss.backward_temp_bytes),
        ];
        sums.add(&|| Place::Loss, &times, &sizes)?;
        let sizes = [
            ("temp_bytes", optimizer.temp_bytes),
            ("state_bytes", optimizer.state_bytes),
        ];
        sums.add(
            &|| Place::Optimizer,
            &[("step_s", optimizer.step_s)],
            &sizes,
        )?;
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
    /// Checks and sums the times and sizes at one position.
    fn add(
        &mut self,
        place: &dyn Fn() -> Place,
        times: &[(&'static str, Seconds)],
        sizes: &[(&'static str, Bytes)],
    ) -> Result<(), ChainError> {
        for &(field, value) in times {
            if !value.0.is_finite() || value.0 < 0.0 {
                return Err(ChainError::Time {
                    place: place(),
                    field,
                    value: value.0,
                });
            }
            self.seconds += value;
        }
        for &(field, value) in sizes {
            if value.0 > MOST_BYTES {
                return Err(ChainError::Size {
                    place: place(),
                    field,
                    value,
                });
            }
            self.bytes += value;
        }
        Ok(())
    }
}
