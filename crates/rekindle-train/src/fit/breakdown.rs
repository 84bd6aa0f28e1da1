//! What a peak is made of.

use rekindle_plan::{Action, Bytes, Stage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{session::Planned, settings::TrainSettings};
use rekindle::record::Estimate;

/// The bytes of the moment that holds most. Their sum is the predicted peak.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Breakdown {
    /// Parameters.
    pub parameters_bytes: Bytes,
    /// Gradients of parameters that exist at that moment.
    pub gradients_bytes: Bytes,
    /// The optimizer's state.
    pub optimizer_bytes: Bytes,
    /// Activations that wait for the backward pass, and those that were made again in it.
    pub activations_bytes: Bytes,
    /// Gradients of activations, and what kernels hold for a while.
    pub temporaries_bytes: Bytes,
    /// Input and targets.
    pub data_bytes: Bytes,
    /// Frozen parameters, running statistics, and what kernels and tables keep.
    pub other_bytes: Bytes,
    /// The moment of the peak, in words.
    pub at: String,
}

impl Breakdown {
    /// The peak of a plan for an estimated step.
    #[must_use]
    pub fn new(estimate: &Estimate, settings: &TrainSettings, planned: &Planned) -> Self {
        let summed_bytes = settings.accumulated_bytes(estimate.trainable);
        let (action, parts) = planned.at_peak();
        let (parameters, data) = (estimate.gradient_bytes, estimate.input_bytes);
        let state = estimate.state_bytes;
        Self {
            parameters_bytes: parameters,
            gradients_bytes: parts.parameter_gradients + summed_bytes,
            optimizer_bytes: state,
            activations_bytes: parts.activations + parts.graphs,
            temporaries_bytes: parts.gradients + parts.temporary,
            data_bytes: data,
            other_bytes: parts.fixed - parameters - data - state - summed_bytes,
            at: moment(action, &planned.staged.chain.stages),
        }
    }
}

fn moment(action: Action, stages: &[Stage]) -> String {
    match action {
        Action::Forward(stage) => format!("the forward of {}", stages[stage.0].name),
        Action::Backward(stage) => format!("the backward of {}", stages[stage.0].name),
        Action::Loss => "the loss".into(),
        Action::Optimize => "the optimizer's step".into(),
    }
}
