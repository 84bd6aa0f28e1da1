//! A plan with all predictions before the first step.

use rekindle_plan::{Action, Bytes, Chain, Parts, Seconds, StageId};

use super::order::Order;
use crate::{optimizer_state::StatePlan, timeline::Prediction};
use rekindle::{
    meter::Count,
    record::{InBackwardBecause, Offload, StepExchange, Update},
};

/// A plan and its predictions before the first step.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The chain with the costs under this plan, fixed bytes included.
    pub chain: Chain,
    /// How often each stage's forward runs; for a recorded step, the maximum over its operations.
    pub forwards: Vec<usize>,
    /// First and last stage of each segment; `None` if stages are recomputed in another way.
    pub segments: Option<Vec<[usize; 2]>>,
    /// The step as actions on stages. In a plan of single operations, a repeated `forward` recomputes some of the
    /// stage's operations.
    pub actions: Vec<Action>,
    /// What runs; `None` if only a chain is known.
    pub order: Option<Order>,
    /// The moment of the predicted peak: the index of its action, and the bytes by parts.
    pub at_peak: (usize, Parts),
    /// Predicted time of a step, all parts of its batch and the update included.
    pub step: Seconds,
    /// The number of repeated operations in a recorded step, and of all its operations.
    pub operations: Option<(usize, usize)>,
    /// Offloading to host memory, if there is a link to it.
    pub offload: Option<Offload>,
    /// Time that the exchange adds to the step, if ranks share it.
    pub exchange: Option<StepExchange>,
    /// How the optimizer's state is kept, if ranks share the step.
    pub state: Option<StatePlan>,
    /// When parameters are updated.
    pub update: Update,
    /// Why updates are in the backward pass, if that was not requested.
    pub in_backward_because: Option<InBackwardBecause>,
    /// The planner's name in records.
    pub planner: String,
    /// The budget, and which bytes it bounds.
    pub budget: Option<Bytes>,
    /// Which bytes peaks count.
    pub count: Count,
    /// The predicted peak of the counted bytes.
    pub peak: Bytes,
    /// The predicted peak of the bytes in use, as a meter measures it: at any time on the CPU, between instructions on
    /// a GPU.
    pub peak_in_use: Bytes,
    /// Peak of the same training without recomputing.
    pub plain_peak: Bytes,
    /// Step time of the same training without recomputing.
    pub plain_step: Seconds,
    /// Values that training changes.
    pub param_count: u64,
    pub(crate) prediction: Prediction,
}

impl Planned {
    /// Offloading, if any tensor is offloaded.
    #[must_use]
    pub fn moves(&self) -> Option<&Offload> {
        self.offload.as_ref().filter(|offload| offload.tensors > 0)
    }

    /// Whether anything is recomputed.
    #[must_use]
    pub fn recomputes(&self) -> bool {
        self.forwards.iter().any(|&count| count > 1)
    }
}

/// First and last stage of each segment.
pub(super) fn numbers(segments: &[(StageId, StageId)]) -> Vec<[usize; 2]> {
    let segments = segments.iter();
    segments.map(|(first, last)| [first.0, last.0]).collect()
}
