//! A plan with all that is known of it before the first step.

use rekindle_plan::{
    Action, Bytes, Chain, Parts, Plan, Seconds, StageId, Violation, graph::Levers, simulate,
};

use super::order::Order;
use crate::{optimizer_state::StatePlan, timeline::Prediction, update::InBackwardBecause};
use rekindle::{
    meter::Count,
    record::{Offload, StepExchange, Update},
};

/// What is known before the first step.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The chain as the plan meets it, fixed bytes included.
    pub chain: Chain,
    /// How often each stage's forward runs; of a recorded step, the most often that one of its operations does.
    pub forwards: Vec<usize>,
    /// First and last stage of each segment; `None` where stages run again in another way.
    pub segments: Option<Vec<[usize; 2]>>,
    /// The step as actions on stages. Of a plan of single operations, a `forward` that comes again recomputes some of
    /// the stage's operations.
    pub actions: Vec<Action>,
    /// What runs.
    pub order: Order,
    /// The moment of the predicted peak: the place of its action, and what the bytes are.
    pub at_peak: (usize, Parts),
    /// Predicted time of a step, all parts of its batch and the update included.
    pub step: Seconds,
    /// How the planner came to it.
    pub source: String,
    /// Operations that run again in a recorded step, and how many there are.
    pub operations: Option<(usize, usize)>,
    /// What goes to the host's memory, where there is a link to it.
    pub offload: Option<Offload>,
    /// What the exchange adds to the step, where ranks share it.
    pub exchange: Option<StepExchange>,
    /// Who keeps the optimizer's state, where ranks share the step.
    pub state: Option<StatePlan>,
    /// Where parameters are updated in the backward pass: what that and recomputing do to the peak, each by itself.
    pub levers: Option<Levers>,
    /// When parameters are updated.
    pub update: Update,
    /// Why in the backward pass, where nobody asked for that.
    pub in_backward_because: Option<InBackwardBecause>,
    /// Its name, as records show it.
    pub planner: String,
    /// The budget, and which bytes it bounds.
    pub budget: Option<Bytes>,
    /// Which bytes peaks count.
    pub count: Count,
    /// The predicted peak of the bytes that count.
    pub peak: Bytes,
    /// The predicted peak in use as a meter sees it: everywhere on the processor, between instructions on a GPU.
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
    /// A plan for a chain that nothing else is known of.
    ///
    /// # Errors
    ///
    /// If the plan was made for another chain.
    pub fn of_chain(
        chain: Chain,
        plan: Plan,
        plain: &Plan,
        budget: Option<Bytes>,
    ) -> Result<Self, Violation> {
        let simulation = simulate(&chain, &plan.schedule)?;
        let segments = plan.schedule.segments();
        Ok(Self {
            forwards: plan.schedule.forward_counts(),
            segments: segments.map(|segments| numbers(&segments)),
            actions: plan.schedule.actions().to_vec(),
            at_peak: (simulation.peak_action, simulation.at_peak),
            peak: plan.peak,
            peak_in_use: plan.peak,
            plain_peak: plain.peak,
            plain_step: plain.step,
            step: plan.step,
            count: Count::default(),
            param_count: 0,
            prediction: Prediction::default(),
            source: plan.source.to_string(),
            operations: None,
            offload: None,
            exchange: None,
            state: None,
            levers: None,
            update: Update::After,
            in_backward_because: None,
            planner: plan.planner.to_string(),
            order: Order::Schedule(plan.schedule),
            budget,
            chain,
        })
    }

    /// Stages of whose operations burn itself runs some again in their backward (its balanced strategy).
    #[must_use]
    pub fn balanced(&self) -> usize {
        let balanced = |action: &&Action| {
            matches!(
                action,
                Action::ForwardTracked {
                    alternative: 1..,
                    ..
                }
            )
        };
        self.actions.iter().filter(balanced).count()
    }

    /// What waits in host memory, where anything does.
    #[must_use]
    pub fn moves(&self) -> Option<&Offload> {
        self.offload.as_ref().filter(|offload| offload.tensors > 0)
    }

    /// Whether anything runs again.
    #[must_use]
    pub fn recomputes(&self) -> bool {
        self.balanced() > 0 || self.forwards.iter().any(|&count| count > 1)
    }
}

/// First and last stage of each segment.
pub(super) fn numbers(segments: &[(StageId, StageId)]) -> Vec<[usize; 2]> {
    let segments = segments.iter();
    segments.map(|(first, last)| [first.0, last.0]).collect()
}
