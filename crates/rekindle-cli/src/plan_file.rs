//! Plans as files: a schedule with its predicted cost, and the chain that it was made for.

use std::path::Path;

use rekindle_plan::{Bytes, Chain, Plan, Schedule, Seconds};
use serde::{Deserialize, Serialize};

use crate::{exit, failure::Failure};

const FORMAT: &str = "rekindle-plan/1";

/// Measured sizes of the same stage may differ by this fraction's inverse, and by a tensor's own bookkeeping.
const SIZE_TOLERANCE: u64 = 20;
const TENSOR_OVERHEAD: u64 = 2048;

/// What `plan -o` writes and `train --plan` reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    format: String,
    /// The stages that the plan is for: names and sizes, not times, which change from run to run.
    chain: Vec<StageSizes>,
    pub planner: String,
    pub feasible: bool,
    pub budget_bytes: Option<Bytes>,
    pub predicted_peak_bytes: Bytes,
    pub predicted_step_s: Seconds,
    /// First and last stage of each segment; null for nested schedules.
    pub segments: Option<Vec<[usize; 2]>>,
    schedule: Vec<rekindle_plan::Action>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageSizes {
    name: String,
    output_bytes: Bytes,
    param_bytes: Bytes,
}

impl PlanFile {
    /// A plan and the chain that it was made for.
    pub fn new(plan: &Plan, chain: &Chain, budget: Option<Bytes>) -> Self {
        let segments = plan.schedule.segments();
        Self {
            format: FORMAT.into(),
            chain: sizes(chain),
            planner: plan.planner.to_string(),
            feasible: true,
            budget_bytes: budget,
            predicted_peak_bytes: plan.peak,
            predicted_step_s: plan.step,
            segments: segments.map(|segments| {
                segments
                    .iter()
                    .map(|(first, last)| [first.0, last.0])
                    .collect()
            }),
            schedule: plan.schedule.actions().to_vec(),
        }
    }

    /// Reads a plan; the schedule in it breaks no rule.
    pub fn read(path: &Path) -> Result<(Self, Schedule), Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        let wrong = |message: String| Failure::usage(format!("{}: {message}", path.display()));
        let file: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if file.format != FORMAT {
            return Err(wrong(format!(
                "the format is `{}`, but `{FORMAT}` is wanted: make it with `rekindle plan -o`",
                file.format
            )));
        }
        let schedule = Schedule::new(file.chain.len(), file.schedule.clone())
            .map_err(|error| wrong(error.to_string()))?;
        Ok((file, schedule))
    }

    /// Refuses a plan that was made for another model or batch.
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
                    planned.name, planned.param_bytes, actual.name, actual.param_bytes
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
