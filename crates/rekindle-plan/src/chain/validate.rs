//! Checks the values of a chain.

use std::fmt::Display;

use super::costs::Chain;
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// The `format` of a chain file.
pub const FORMAT: &str = "rekindle-chain/1";

/// The sum of all sizes of a chain stays at or below this, so that no sum of live sizes can overflow 64 bits.
const MOST_BYTES: u64 = 1 << 60;

/// Why a chain or its file is invalid: the value, and its stage and field or its line and column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChainError(pub String);

impl Chain {
    /// Checks every value: at least one stage, times finite and not negative, saved bytes at least the output's, and
    /// sums that cannot overflow.
    ///
    /// # Errors
    /// The first invalid value, with its stage and field.
    pub fn validate(&self) -> Result<(), ChainError> {
        if self.stages.is_empty() {
            return Err(ChainError("the chain has no stages".to_owned()));
        }
        let mut sums = Sums::default();
        let sizes = [
            ("input_bytes", self.input_bytes),
            ("fixed_bytes", self.fixed_bytes),
        ];
        sums.add(&|| "chain".to_owned(), &[], &sizes)?;
        for (index, stage) in self.stages.iter().enumerate() {
            let place = || format!("stage {index} ({:?})", stage.name);
            // It could rewrite what a terminal shows.
            if stage.name.chars().any(char::is_control) {
                let place = place();
                let said = format!("{place}: the name holds a control character");
                return Err(ChainError(said));
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
            let (saved, output) = (stage.saved_bytes.0, stage.output_bytes.0);
            if saved < output {
                return Err(ChainError(format!(
                    "{}: saved_bytes is {saved}, less than the output_bytes of {output} that it includes",
                    place()
                )));
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
        sums.add(&|| "loss".to_owned(), &times, &sizes)?;
        let sizes = [
            ("temp_bytes", optimizer.temp_bytes),
            ("state_bytes", optimizer.state_bytes),
        ];
        let times = [("step_s", optimizer.step_s)];
        sums.add(&|| "optimizer".to_owned(), &times, &sizes)?;
        if sums.bytes > Bytes(MOST_BYTES) {
            let said = "the sizes of the chain add up to more than 2^60 bytes";
            return Err(ChainError(said.to_owned()));
        }
        if !sums.seconds.0.is_finite() {
            let said = "the times of the chain add up to infinity";
            return Err(ChainError(said.to_owned()));
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
        place: &dyn Fn() -> String,
        times: &[(&str, Seconds)],
        sizes: &[(&str, Bytes)],
    ) -> Result<(), ChainError> {
        let wrong = |field: &str, value: &dyn Display, expected: &str| {
            ChainError(format!(
                "{}: {field} is {value}, expected {expected}",
                place()
            ))
        };
        for &(field, value) in times {
            if !value.0.is_finite() || value.0 < 0.0 {
                let expected = "a finite number of seconds, 0 or more";
                return Err(wrong(field, &value.0, expected));
            }
            self.seconds += value;
        }
        for &(field, value) in sizes {
            if value.0 > MOST_BYTES {
                let expected = "a whole number of bytes from 0 to 2^60";
                return Err(wrong(field, &value.0, expected));
            }
            self.bytes += value;
        }
        Ok(())
    }
}
