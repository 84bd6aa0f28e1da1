//! Plans as files: a schedule with its predicted cost, and the chain that it was made for.

use rekindle::record::{Offload, StepExchange, Update};
use rekindle_plan::{Bytes, Chain, Schedule, Seconds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Order, Planned, RunError};
use crate::optimizer_state::StatePlan;

/// Format tag of [`PlanFile`].
pub const PLAN_FORMAT: &str = "rekindle-plan/1";

/// Measured sizes of the same stage may differ by the inverse of this, and by a tensor's overhead.
const SIZE_TOLERANCE: u64 = 20;
const TENSOR_OVERHEAD: u64 = 2048;

/// What `plan -o` writes and `train --plan` reads.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    format: String,
    /// The stages that the plan is for, by which `train` recognises the model.
    chain: Vec<StageSizes>,
    /// Who found the schedule.
    pub planner: String,
    /// Always `true`.
    pub feasible: bool,
    /// When its steps update parameters.
    #[serde(default)]
    pub update: Update,
    /// The budget; `null` without one.
    pub budget_bytes: Option<Bytes>,
    /// The highest number of bytes at any moment, everything counted.
    pub predicted_peak_bytes: Bytes,
    /// Time of one step.
    pub predicted_step_s: Seconds,
    /// First and last stage of each segment; `null` where stages are recomputed in another way.
    pub segments: Option<Vec<[usize; 2]>>,
    /// The passes of a step over its stages in order, each a string such as `forward 3`; a `forward` that comes again
    /// recomputes some or all of a stage's operations. For a chain without a profile, `forward_keep` also keeps the
    /// stage's input, and `forward_tracked` what its backward needs.
    schedule: Vec<String>,
    /// What waits in host memory; only where there is a link to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offload: Option<Offload>,
    /// What the exchange takes of the step; only in plans for several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<PlanOfRanks>,
    /// What runs; not for a chain without a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operations: Option<Order>,
}

/// A step that several ranks share.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanOfRanks {
    /// The largest number of samples that a rank has of the batch: all else here is of such a rank.
    pub batch: usize,
    /// What the exchange adds to the step; included in `predicted_step_s`.
    pub predicted_exchange_s: Seconds,
    /// The share of the step that is not the exchange: how many times as many samples a second the ranks train as one rank
    /// with its part of the batch, by their number.
    pub efficiency: f64,
    /// What the exchange consists of.
    pub exchange: StepExchange,
    /// Who keeps the optimizer's state, and what either way takes of this rank.
    pub optimizer_state: StatePlan,
}

impl PlanOfRanks {
    fn new(plan: &Planned, batch: usize) -> Option<Self> {
        let (exchange, optimizer_state) = plan.exchange.zip(plan.state)?;
        let added = exchange.taken.added();
        Some(Self {
            batch,
            predicted_exchange_s: added,
            efficiency: 1.0 - added.0 / plan.step.0,
            exchange,
            optimizer_state,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StageSizes {
    /// The stage's name.
    name: String,
    /// Bytes of its output.
    output_bytes: Bytes,
    /// Bytes of its parameters.
    param_bytes: Bytes,
}

impl PlanFile {
    /// A plan and the sizes of the stages that it was made for; `batch` is the samples of a rank.
    #[must_use]
    pub fn new(plan: &Planned, batch: usize) -> Self {
        let schedule = match &plan.order {
            Some(_) => plan.actions.iter().map(ToString::to_string).collect(),
            None => Schedule::new(plan.chain.stages.len(), plan.actions.clone()).written(),
        };
        Self {
            format: PLAN_FORMAT.into(),
            chain: sizes(&plan.chain),
            planner: plan.planner.clone(),
            feasible: true,
            update: plan.update,
            budget_bytes: plan.budget,
            predicted_peak_bytes: plan.peak,
            predicted_step_s: plan.step,
            segments: plan.segments.clone(),
            schedule,
            offload: plan.offload,
            ranks: PlanOfRanks::new(plan, batch),
            operations: plan.order.clone(),
        }
    }

    /// What runs.
    ///
    /// # Errors
    ///
    /// If it was made from a chain alone.
    pub fn order(&self) -> Result<&Order, RunError> {
        let order = self.operations.as_ref();
        order.ok_or_else(|| {
            RunError::OtherModel("made from a chain alone, without a step that can run".into())
        })
    }

    /// Rejects a plan that was made for another model or batch.
    pub(super) fn check(&self, chain: &Chain) -> Result<(), RunError> {
        let actual = sizes(chain);
        let refused = |message: String| {
            RunError::OtherModel(format!("the plan was made for another model: {message}"))
        };
        if self.chain.len() != actual.len() {
            return Err(refused(format!(
                "it has {} stages, this one has {}",
                self.chain.len(),
                actual.len()
            )));
        }
        for (stage, (planned, actual)) in self.chain.iter().zip(&actual).enumerate() {
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

fn sizes(chain: &Chain) -> Vec<StageSizes> {
    chain
        .stages
        .iter()
        .map(|stage| StageSizes {
            name: stage.name.clone(),
            output_bytes: stage.output_bytes,
            param_bytes: stage.param_bytes,
        })
        .collect()
}
