//! Where a run's schedule comes from.

use rekindle::record::Wanted;
use rekindle_plan::{
    Bytes, Request,
    graph::{OperationId, TensorId},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PlanFile, RunError};

/// Where a run's schedule comes from.
pub enum ScheduleRequest {
    /// A planner finds it on the measured chain.
    Plan(Request),
    /// It was made before.
    Given(Box<PlanFile>),
}

/// What a recorded step runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Identifies the recorded step, in hexadecimal: another model, batch or loss has another.
    #[serde(with = "hexadecimal")]
    #[schemars(with = "String")]
    pub recording: u64,
    /// The operations to run, in order, as places in the recorded step. Behind its n operations stand the transfers: n + 2k
    /// copies the tensor number k of `offloaded` to the host, n + 2k + 1 fetches it.
    #[serde(rename = "order")]
    pub operations: Vec<OperationId>,
    /// The tensors that go to host memory, as places in the recorded step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offloaded: Vec<TensorId>,
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16)
            .map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
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

    pub(super) fn wanted(&self) -> Wanted {
        Wanted::Operations {
            operations: self.operations.clone(),
            offloaded: self.offloaded.clone(),
        }
    }
}

impl ScheduleRequest {
    /// What the step is planned by.
    pub(super) fn wanted(&self) -> Result<Wanted, RunError> {
        Ok(match self {
            Self::Plan(request) => request.planner.into(),
            Self::Given(file) => file.order()?.wanted(),
        })
    }

    /// The budget, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        match self {
            Self::Plan(request) => request.budget,
            Self::Given(file) => file.budget_bytes,
        }
    }

    /// The planner of a schedule that was made before.
    pub(super) fn planned_before(&self) -> Option<String> {
        match self {
            Self::Plan(_) => None,
            Self::Given(file) => Some(file.planner.clone()),
        }
    }
}
