//! Where a run's schedule comes from.

use rekindle::record::Update;
use rekindle_plan::{
    Bytes, Chain, Request, Schedule,
    graph::{OperationId, TensorId},
};

/// Says why a schedule does not belong to a chain, if it does not.
pub type ChainCheck = Box<dyn Fn(&Chain) -> Result<(), String>>;

/// Where a run's schedule comes from.
pub enum ScheduleRequest {
    /// A planner finds it on the measured chain.
    Plan(Request),
    /// It was made before.
    Given {
        /// What the step runs.
        order: Order,
        /// Who made it.
        planner: String,
        /// The budget that it was made for.
        budget: Option<Bytes>,
        /// When it updates parameters.
        update: Update,
        /// Whether it belongs to the chain that is measured.
        check: ChainCheck,
    },
}

/// In which order a step runs what.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Stages, by a schedule.
    Schedule(Schedule),
    /// Operations of a recorded step.
    Operations {
        /// Their places in the recording, and behind these the transfers of `offloaded`.
        operations: Vec<OperationId>,
        /// The tensors that go to the host.
        offloaded: Vec<TensorId>,
        /// The [recording's](rekindle::record::StagedPlan::recording).
        recording: u64,
    },
}

impl ScheduleRequest {
    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            Self::Given { budget, .. } => *budget,
        }
    }
}
