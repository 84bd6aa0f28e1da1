//! Where a run's schedule comes from.

use rekindle::record::Update;
use rekindle_plan::{
    Bytes, Chain, Request,
    graph::{OperationId, TensorId},
};

use super::RunError;

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

/// What a recorded step runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// Operations by their places in the recording, and behind these the transfers of `offloaded`.
    pub operations: Vec<OperationId>,
    /// The tensors that go to the host.
    pub offloaded: Vec<TensorId>,
    /// The [recording's](rekindle::record::StagedPlan::recording).
    pub recording: u64,
}

impl Order {
    /// Fails if it is for another recording.
    pub(super) fn check(&self, recording: u64) -> Result<(), RunError> {
        if self.recording != recording {
            return Err(RunError::OtherModel(
                "the plan was made for another model or batch: its operations are not those of this step".into(),
            ));
        }
        Ok(())
    }
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

    /// The planner of a schedule that was made before.
    pub(super) fn planned_before(&self) -> Option<String> {
        match self {
            Self::Plan(_) => None,
            Self::Given { planner, .. } => Some(planner.clone()),
        }
    }
}
