//! What is said of a step whose loss or gradients are not finite.

use std::fmt;

use super::settings::OnNonFinite;

/// A step whose loss or gradients are not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct NonFinite {
    /// Number of the step, from 1.
    pub step: usize,
    /// The loss.
    pub loss: f64,
    /// The first parameter in the model's order whose gradient is not finite, and its stage.
    pub gradient: Option<(usize, String)>,
    /// What was done.
    pub handled: OnNonFinite,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, loss, .. } = self;
        write!(f, "step {step}: the loss is {loss}")?;
        match &self.gradient {
            Some((_, path)) => write!(
                f,
                ", and the first gradient that is not finite is that of `{path}`"
            ),
            None => Ok(()),
        }
    }
}
