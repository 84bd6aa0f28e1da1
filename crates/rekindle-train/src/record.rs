//! The record of a run, from which all tables, files and pictures are made.

use std::fmt;

pub use super::measured::{Measured, Slowdown, Turn};
use rekindle_plan::{Bytes, Seconds, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::{settings::TrainSettings, timeline::Timeline};
use crate::model::spec::ModelSpec;
use rekindle::{
    meter::{Count, PhaseReading},
    record::PlanSummary,
};

/// Format tag of [`RunRecord`].
pub const RUN_FORMAT: &str = "rekindle-run/3";

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Number of the step, from 1.
    pub step: usize,
    /// Mean loss of the batch.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Share of samples classified right; `None` where there are no classes.
    pub accuracy: Option<f64>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Wall-clock seconds of the whole step, from fetching the batch to the updated parameters, and of waiting for the next
    /// batch, which is built meanwhile.
    pub step_s: Seconds,
    /// What the loss was multiplied by before its backward pass; `None` where it is not scaled.
    pub loss_scale: Option<f64>,
    /// Whether the step updated nothing: its loss or gradients were not finite.
    pub skipped: bool,
}

/// Memory of one step, phase by phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhasedStep {
    /// Number of the step, from 1.
    pub step: usize,
    /// Its phases in order.
    pub phases: Vec<PhaseReading>,
}

/// Memory in use that grew with the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryGrowth {
    /// The tenth step since the start, or since the run was resumed: everything that is made once is there.
    pub first_step: usize,
    /// Bytes in use after it.
    pub first_bytes: Bytes,
    /// The step at which the growth was noticed.
    pub last_step: usize,
    /// Bytes in use after it.
    pub last_bytes: Bytes,
}

impl fmt::Display for MemoryGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            first_step,
            first_bytes,
            last_step,
            last_bytes,
        } = self;
        write!(
            f,
            "{first_bytes} in use after step {first_step}, {last_bytes} after step {last_step}"
        )
    }
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvalRecord {
    /// Number of steps done before it.
    pub step: usize,
    /// Number of samples.
    pub samples: usize,
    /// Mean loss.
    #[serde(deserialize_with = "number")]
    #[schemars(with = "Option<f64>")]
    pub loss: f64,
    /// Share of samples classified right; `null` where there are no classes.
    pub accuracy: Option<f64>,
}

/// A plan that ran: what was predicted, and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ran {
    /// The plan.
    #[serde(flatten)]
    pub plan: PlanSummary,
    /// What it took.
    #[serde(flatten)]
    pub measured: Measured,
}

impl From<RunRecord> for Ran {
    fn from(record: RunRecord) -> Self {
        Self {
            plan: record.plan,
            measured: record.measured,
        }
    }
}

/// How a GPU's pools served a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolRecord {
    /// How often they were trimmed to stay within the budget. Only on a GPU.
    pub trims: u64,
}

/// What the process of a run had in RAM, as the system counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resident {
    /// What it had besides its heap, before the first step: pages of its program, and stacks.
    pub beside_bytes: Bytes,
    /// The most that it had at once.
    pub peak_bytes: Bytes,
}

/// One of the ranks that share a run, over all that it did until the last step or evaluation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RankRecord {
    /// Its samples in each step.
    pub batch: usize,
    /// Its budget; `null` without one.
    pub budget_bytes: Option<Bytes>,
    /// Its predicted peak.
    pub predicted_peak_bytes: Bytes,
    /// Its measured peak.
    pub measured_peak_bytes: Bytes,
    /// Number of plans that it made anew, because memory ran short.
    pub replans: usize,
}

/// A whole run, in as much memory after any number of steps: steps and evaluations are in [files of their
/// own](super::run_dir).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// [`RUN_FORMAT`].
    pub format: String,
    /// Name of the run: its config's path.
    pub name: String,
    /// Where it ran.
    pub device: String,
    /// Name of the device.
    pub hardware: String,
    /// The model: its input and layers, with all settings.
    pub model: ModelSpec,
    /// The config's `[train]`, with all settings.
    pub settings: TrainSettings,
    /// Parameters that are trained.
    pub param_count: u64,
    /// The plan; of a run that was planned again, the last one, with the highest predicted peak of all and the first budget.
    #[serde(flatten)]
    pub plan: PlanSummary,
    /// The stages, as measured before the run.
    pub stages: Vec<Stage>,
    /// Which bytes the budget bounds and the peaks count. On the CPU the two are one.
    pub count: Count,
    /// What it took.
    #[serde(flatten)]
    pub measured: Measured,
    /// What the exchange added to each step, as the median over the steps of `measured_step_s`: copying gradients to their
    /// buckets and back, waiting for what the rest of the step does not hide and for slower ranks, means over ranks, and
    /// sending updated parameters. Only of a run of several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_exchange_s: Option<Seconds>,
    /// How a GPU's pools served the run; `null` on the processor.
    pub pools: Option<PoolRecord>,
    /// Bytes that the whole GPU held when the run ended, other processes included; `null` unless it is NVIDIA's.
    pub whole_gpu_used_bytes: Option<Bytes>,
    /// What the process had in RAM; `null` unless it ran on the processor, on Linux.
    pub resident: Option<Resident>,
    /// The same training without recomputing, if plain steps were run (with `--compare`, or in a run that is long enough on
    /// the CPU); else `null`, and `plain_peak_bytes` and `plain_step_s` predict it.
    pub plain: Option<Measured>,
    /// Steps by the plan and plain steps, as they ran in turns; `plain` is the middle one of the plain ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// Loss of the first step; `null` where it is not finite.
    #[serde(deserialize_with = "number")]
    #[schemars(with = "Option<f64>")]
    pub first_loss: f64,
    /// Loss of the last step; `null` where it is not finite.
    #[serde(deserialize_with = "number")]
    #[schemars(with = "Option<f64>")]
    pub last_loss: f64,
    /// Number of steps done.
    pub steps: usize,
    /// Samples in each step.
    pub batch: usize,
    /// The ranks that shared it since it was started or resumed, by number; empty for a run of one process. Other memory and
    /// times in this record are rank 0's.
    #[serde(default)]
    pub ranks: Vec<RankRecord>,
    /// Number of steps done when the run was last resumed; `null` if it never was.
    pub resumed_at: Option<usize>,
    /// Whether the run was stopped before its last step; also true while it runs.
    pub interrupted: bool,
    /// Steps since it was started or resumed whose loss or gradients were not finite; `settings.on_nonfinite` says what
    /// became of them.
    #[serde(default)]
    pub nonfinite_steps: usize,
    /// Further steps since then that were skipped because gradients overflowed with the loss scaled; the scale fell.
    #[serde(default)]
    pub overflow_steps: usize,
    /// The scale of the loss after the last step; `null` where it is not scaled.
    #[serde(default)]
    pub loss_scale: Option<f64>,
    /// Number of plans made anew since then, because memory ran short.
    #[serde(default)]
    pub replans: usize,
    /// The last evaluation; `null` before the first.
    pub evaluation: Option<EvalRecord>,
    /// The evaluation with the smallest loss; its snapshot is kept.
    pub best_evaluation: Option<EvalRecord>,
    /// Memory by phase of the first three steps and the last.
    pub phases: Vec<PhasedStep>,
    /// Memory in use that grew with the steps: in each of five times ten steps its least was higher than ever before, and by
    /// more than 64 KiB in all; `null` where that was not so.
    pub growth: Option<MemoryGrowth>,
    /// One step, action by action; `null` of a run without a folder.
    pub timeline: Option<Timeline>,
}

impl RunRecord {
    /// Reads a record that was written as JSON.
    ///
    /// # Errors
    ///
    /// If it is of another format, or not whole.
    pub fn from_json(text: &[u8]) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Tag {
            format: String,
        }
        // Check the format first: for another version, missing fields are not the error to report.
        let tag: Tag = serde_json::from_slice(text)?;
        if tag.format != RUN_FORMAT {
            return Err(Error::custom(format!(
                "it has the format `{}`, but this version reads `{RUN_FORMAT}`",
                tag.format
            )));
        }
        serde_json::from_slice(text)
    }
}

/// A loss that is NaN or infinite is `null` in JSON.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    if from.is_human_readable() {
        Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
    } else {
        f64::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_is_no_number_survives() {
        let step = StepRecord {
            step: 1,
            loss: f64::NAN,
            accuracy: None,
            learning_rate: 0.5,
            step_s: Seconds(0.25),
            loss_scale: None,
            skipped: false,
        };
        let text = serde_json::to_string(&step).expect("JSON");
        let read: StepRecord = serde_json::from_str(&text).expect("what was written");
        assert!(read.loss.is_nan());
        assert_eq!(read.step_s, step.step_s);
    }
}
