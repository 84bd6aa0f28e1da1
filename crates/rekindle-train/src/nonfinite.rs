//! A step whose loss or gradients are not finite: what happens then, and the report.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens where a step's loss or gradients are not finite. No snapshot is taken of a state that is not finite,
/// whatever is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// The run ends; the model is as it was before the step. Where parameters are updated in the backward pass, each
    /// gradient is checked before its own update alone: the run continues from its last snapshot.
    #[default]
    Stop,
    /// The step counts, but parameters, optimizer state and running statistics stay as they were.
    Skip,
    /// The update is made all the same.
    Continue,
}

/// A step whose loss or gradients are not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct NonFinite {
    /// Number of the step, from 1.
    pub step: usize,
    /// The epoch of its batch, from 1.
    pub epoch: usize,
    /// The batch within its epoch, from 1.
    pub batch: usize,
    /// The loss.
    pub loss: f64,
    /// The path of the first parameter in the model's order whose gradient is not finite.
    pub gradient: Option<String>,
    /// The stage of that parameter.
    pub stage: Option<String>,
    /// What was done.
    pub handled: OnNonFinite,
    /// The factor of the loss before its backward pass, if it is scaled.
    pub loss_scale: Option<f64>,
    /// The smaller scale of the next step, if the scale may be the cause: then the step was skipped.
    pub lower_scale: Option<f64>,
    /// What of the model or the optimizer's state is itself not finite, where the step was to be skipped: then no step can
    /// change anything.
    pub state: Option<String>,
}

impl NonFinite {
    /// The scale of the loss in words, after a comma.
    fn scaled(&self) -> String {
        match (self.loss_scale, self.lower_scale) {
            (None, _) => String::new(),
            (Some(1.0), None) => ", with a loss scale of 1, which does not fall further".into(),
            (Some(scale), _) => format!(", with the loss scaled by {scale}"),
        }
    }

    /// The message of a run that it ends.
    pub(super) fn ended(&self) -> String {
        let gradient = match (&self.gradient, &self.stage) {
            (Some(path), Some(stage)) => format!(
                ", and the first gradient that is not finite is that of `{path}` in stage `{stage}`"
            ),
            _ => String::new(),
        };
        let state = self.state.as_ref().map_or_else(String::new, |what| {
            format!("; {what} is not finite, so that skipping steps changes nothing")
        });
        format!(
            "the loss of step {} is {}{gradient}{}{state}. It is batch {} of epoch {}; the model, its statistics and the optimizer \
             are what they were before the step",
            self.step,
            self.loss,
            self.scaled(),
            self.batch,
            self.epoch
        )
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, loss, .. } = self;
        write!(f, "step {step}: the loss is {loss}")?;
        if let Some(path) = &self.gradient {
            write!(
                f,
                ", and the first gradient that is not finite is that of `{path}`"
            )?;
        }
        f.write_str(&self.scaled())
    }
}
