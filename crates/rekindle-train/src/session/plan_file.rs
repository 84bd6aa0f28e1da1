//! Plans as files: a schedule with its predicted cost, and the chain that it was made for.

use rekindle::record::{Order, PlanSummary};
use rekindle_plan::{Chain, Stage, schedule::written};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Planned, RunError};

/// Format tag of [`PlanFile`].
pub const PLAN_FORMAT: &str = "rekindle-plan/2";

/// Measured sizes of the same stage may differ by the inverse of this, and by a tensor's overhead.
const SIZE_TOLERANCE: u64 = 20;
const TENSOR_OVERHEAD: u64 = 2048;

/// What `plan -o` writes and `train --plan` reads.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PlanFile {
    format: String,
    /// Always `true`.
    feasible: bool,
    /// The plan in numbers.
    #[serde(flatten)]
    pub plan: PlanSummary,
    /// The stages that the plan is for, by whose names and sizes `train` recognises the model.
    stages: Vec<Stage>,
    /// The passes of a step over its stages in order, each a string such as `forward 3`; a `forward` that comes again
    /// recomputes some or all of a stage's operations. For a chain without a profile, `forward_keep` also keeps the
    /// stage's input, and `forward_tracked` what its backward needs.
    schedule: Vec<String>,
    /// What runs; not for a chain without a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
}

impl PlanFile {
    /// A plan and the stages that it was made for.
    #[must_use]
    pub fn new(plan: &Planned) -> Self {
        let (stages, actions) = (&plan.staged.chain.stages, plan.actions());
        let schedule = match &plan.staged.order {
            Some(_) => actions.iter().map(ToString::to_string).collect(),
            None => written(&actions),
        };
        Self {
            format: PLAN_FORMAT.into(),
            feasible: true,
            plan: plan.summary.clone(),
            stages: stages.clone(),
            schedule,
            order: plan.staged.order.clone(),
        }
    }

    /// What runs.
    ///
    /// # Errors
    ///
    /// If it was made from a chain alone.
    pub fn order(&self) -> Result<&Order, RunError> {
        let order = self.order.as_ref();
        order.ok_or_else(|| {
            RunError::Refused("made from a chain alone, without a step that can run".into())
        })
    }

    /// What runs, if it is of this recording.
    pub(super) fn order_of(&self, recording: u64) -> Result<&Order, RunError> {
        let order = self.order()?;
        match order.recording == recording {
            true => Ok(order),
            false => Err(RunError::Refused(
                "the plan was made for another model or batch: its operations are not those of this step".into(),
            )),
        }
    }

    /// A plan of what this file runs: its planner and its segments are those that were written.
    pub(super) fn named(&self, mut planned: Planned) -> Planned {
        planned.summary.planner = self.plan.planner;
        planned.summary.segments.clone_from(&self.plan.segments);
        planned
    }

    /// Rejects a plan that was made for another model or batch.
    pub(super) fn check(&self, chain: &Chain) -> Result<(), RunError> {
        let refused = |message: String| {
            RunError::Refused(format!("the plan was made for another model: {message}"))
        };
        if self.stages.len() != chain.stages.len() {
            return Err(refused(format!(
                "it has {} stages, this one has {}",
                self.stages.len(),
                chain.stages.len()
            )));
        }
        for (stage, (planned, actual)) in self.stages.iter().zip(&chain.stages).enumerate() {
            if planned.name != actual.name || planned.param_bytes != actual.param_bytes {
                return Err(refused(format!(
                    "its stage {stage} is `{}` with {} of parameters, this one's is `{}` with {}",
                    planned.name.escape_debug(),
                    planned.param_bytes,
                    actual.name,
                    actual.param_bytes
                )));
            }
            let difference = planned.output_bytes.0.abs_diff(actual.output_bytes.0);
            if difference > actual.output_bytes.0 / SIZE_TOLERANCE + TENSOR_OVERHEAD {
                return Err(refused(format!(
                    "its stage {stage} gives {}, this one's gives {} (another batch size?)",
                    planned.output_bytes, actual.output_bytes
                )));
            }
        }
        Ok(())
    }
}
