//! Plans as files: a schedule with its predicted cost, and the chain that it was made for.

use std::path::Path;

use rekindle::record::{Offload, StepExchange, Update};
use rekindle_plan::{
    Bytes, Chain, Schedule, Seconds,
    graph::{OperationId, TensorId},
};
use rekindle_train::{
    optimizer_state::StatePlan,
    session::{Order, Planned},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{exit, failure::Failure, input};

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
    operations: Option<Operations>,
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

/// A program of a recorded step.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Operations {
    /// Identifies the recorded step, in hexadecimal: another model, batch or loss has another.
    recording: String,
    /// The operations to run, in order, as places in the recorded step. Behind its n operations stand the transfers: n + 2k
    /// copies the tensor number k of `offloaded` to the host, n + 2k + 1 fetches it.
    order: Vec<OperationId>,
    /// The tensors that go to host memory, as places in the recorded step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    offloaded: Vec<TensorId>,
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
            operations: plan.order.as_ref().map(|order| Operations {
                recording: format!("{:016x}", order.recording),
                order: order.operations.clone(),
                offloaded: order.offloaded.clone(),
            }),
        }
    }

    /// Reads a plan that can run.
    pub fn read(path: &Path) -> Result<(Self, Order), Failure> {
        let file: Self = input::document(path, PLAN_FORMAT)?;
        let wrong = |message: String| Failure::usage(format!("{}: {message}", path.display()));
        let Some(operations) = &file.operations else {
            return Err(Failure::with_help(
                exit::USAGE,
                format!(
                    "{}: made from a chain alone, without a step that can run",
                    path.display()
                ),
                "make one for this config: `rekindle plan CONFIG --budget SIZE -o plan.json`",
            ));
        };
        let order = Order {
            operations: operations.order.clone(),
            offloaded: operations.offloaded.clone(),
            recording: u64::from_str_radix(&operations.recording, 16)
                .map_err(|error| wrong(format!("`recording`: {error}")))?,
        };
        Ok((file, order))
    }

    /// Rejects a plan that was made for another model or batch.
    pub fn check(&self, chain: &Chain) -> Result<(), Failure> {
        let actual = sizes(chain);
        let refused = |message: String| {
            Failure::with_help(
                exit::USAGE,
                format!("the plan was made for another model: {message}"),
                "make one for this config: `rekindle plan CONFIG --budget SIZE -o plan.json`",
            )
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mutated;

    const PLAN: &str = r#"{"format": "rekindle-plan/1", "chain": [
        {"name": "a", "output_bytes": 5, "param_bytes": 0}, {"name": "b", "output_bytes": 5, "param_bytes": 12}],
        "planner": "segments", "feasible": true, "budget_bytes": null, "predicted_peak_bytes": 40,
        "predicted_step_s": 0.5, "segments": [[0, 0], [1, 1]],
        "schedule": ["forward 0", "forward 1", "loss", "backward 1", "forward 0", "backward 0", "optimize"], "operations": {"recording": "00ff", "order": [0, 1, 2]}}"#;

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..proptest::prelude::ProptestConfig::with_cases(400)
        })]

        #[test]
        fn damaged_plans_are_read_or_refused(edits in mutated::edits()) {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("plan.json");
            fs::write(&path, PLAN).expect("written");
            assert!(PlanFile::read(&path).is_ok());
            fs::write(&path, mutated::edited(PLAN.as_bytes(), &edits)).expect("written");
            if let Err(failure) = PlanFile::read(&path) {
                assert_eq!(failure.code, exit::USAGE);
            }
        }
    }
}
