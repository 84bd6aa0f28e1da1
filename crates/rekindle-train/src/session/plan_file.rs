//! Plans as files: a schedule with its predicted cost, and the chain that it was made for.

use rekindle::record::{
    PlanSummary,
    driver::{Extra, Order},
};
use rekindle_plan::{Stage, schedule::written};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Planned, RunError};

/// Format tag of [`PlanFile`].
pub const PLAN_FORMAT: &str = "rekindle-plan/3";

/// What `plan -o` writes and `train --plan` reads.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PlanFile {
    format: String,
    /// Always `true`.
    feasible: bool,
    /// The plan in numbers.
    #[serde(flatten)]
    pub plan: PlanSummary,
    /// Equal parts that a batch runs in, one after the other. Times are of all of them.
    accumulate: usize,
    /// The stages that the plan is for.
    stages: Vec<Stage>,
    /// The passes of a step over its stages in order, each a string such as `forward 3`; a `forward` that comes again
    /// recomputes some or all of a stage's operations. For a chain without a profile, `forward_keep` also keeps the
    /// stage's input, and `forward_tracked` what its backward needs.
    schedule: Vec<String>,
    /// What runs; not for a chain without a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
    /// What it does beyond the plain step, the longest first.
    #[serde(skip_deserializing)]
    extra: Vec<Extra>,
}

impl PlanFile {
    /// A plan and the stages that it was made for, and what it does beyond the plain step.
    #[must_use]
    pub fn new(plan: &Planned, extra: Vec<Extra>) -> Self {
        let (stages, actions) = (&plan.staged.chain.stages, plan.actions());
        let schedule = match &plan.staged.order {
            Some(_) => actions.iter().map(ToString::to_string).collect(),
            None => written(&actions),
        };
        Self {
            format: PLAN_FORMAT.into(),
            feasible: true,
            plan: plan.summary.clone(),
            accumulate: plan.parts,
            stages: stages.clone(),
            schedule,
            order: plan.staged.order.clone(),
            extra,
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
}
