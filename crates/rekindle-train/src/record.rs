//! What a run leaves behind: one record that every table, file and picture is made from.

use std::fmt;

use rekindle_plan::{Bytes, Seconds};
use serde::{Deserialize, Deserializer, Serialize};

use super::{ExecutorKind, settings::TrainSettings, timeline::Timeline};
use crate::model::spec::ModelSpec;
use rekindle::{
    meter::{Count, Leftover, PhaseReading},
    record::Update,
};

/// Format tag of [`RunRecord`].
pub const RUN_FORMAT: &str = "rekindle-run/2";

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
    /// Wall-clock seconds of the whole step, from fetching the batch to the updated parameters.
    pub step_s: Seconds,
}

/// Memory of one step, phase by phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhasedStep {
    /// Number of the step, from 1.
    pub step: usize,
    /// Its phases in order.
    pub phases: Vec<PhaseReading>,
}

/// Memory that every step leaves behind, as long as a run goes on. Each of the steps that were looked at left as much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryGrowth {
    /// Number of the last of these steps, from 1.
    pub last_step: usize,
    /// Bytes that each step adds to what is in use of a device with pools; `None` on the processor.
    #[serde(default)]
    pub device_step_bytes: Option<Bytes>,
    /// What stays behind by phase, the most first. Nothing of a device with pools, whose buffers are not told apart.
    pub left: Vec<Leftover>,
}

impl fmt::Display for MemoryGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bytes) = self.device_step_bytes {
            return write!(
                f,
                "up to step {} each step leaves {bytes} more of the device's memory in use",
                self.last_step
            );
        }
        let phases = self.left.iter().map(|left| {
            let where_from = left.phase.map_or(
                "outside of phases (data, evaluations, files)".into(),
                |phase| format!("in phase `{}`", phase.name()),
            );
            format!("{} {where_from}", left.step_bytes)
        });
        let phases: Vec<String> = phases.collect();
        write!(
            f,
            "up to step {} each step leaves behind {}",
            self.last_step,
            phases.join(", ")
        )
    }
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps done when it ran.
    pub step: usize,
    /// Samples evaluated.
    pub samples: usize,
    /// Mean loss.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Share of samples classified right; `None` where there are no classes.
    pub accuracy: Option<f64>,
}

/// What the same training without recomputing takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlainRun {
    /// Its peak.
    pub peak_bytes: Bytes,
    /// Its step time.
    pub step_s: Seconds,
    /// Whether plain steps were run, or their cost was predicted from what was measured of the plan's parts.
    pub measured: bool,
    /// Times of the quickest and of the slowest plain step, the first left out, where they were run.
    #[serde(default)]
    pub range_s: Option<[Seconds; 2]>,
}

/// Peak of live buffers: at every moment on the processor, between actions on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakInUse {
    /// As predicted.
    pub predicted_bytes: Bytes,
    /// As measured, over everything the process did.
    pub measured_bytes: Bytes,
}

/// How a GPU's pools served a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// How often they were trimmed so that they stayed within the budget.
    pub trims: u64,
}

/// One stage of the chain that was planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// Its name.
    pub name: String,
    /// How often the plan runs it forward; of single operations, the most often that one of them runs.
    pub forwards: usize,
    /// Seconds of one forward, as measured before the run.
    pub forward_s: Seconds,
    /// Seconds of its backward, as measured before the run.
    pub backward_s: Seconds,
    /// Its output.
    pub output_bytes: Bytes,
    /// What a recorded forward keeps for the backward under this schedule.
    pub saved_bytes: Bytes,
    /// Its parameters.
    pub param_bytes: Bytes,
}

/// A whole run, in as much memory after any number of steps: steps and evaluations are in [files of their
/// own](super::run_dir).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`RUN_FORMAT`].
    pub format: String,
    /// What the run is called, such as the path of its config.
    pub name: String,
    /// Where it ran.
    pub device: String,
    /// What the device is called.
    pub hardware: String,
    /// The model.
    pub model: ModelSpec,
    /// How it was trained.
    pub settings: TrainSettings,
    /// Values that training changes.
    pub param_count: u64,
    /// What ran the steps.
    pub executor: ExecutorKind,
    /// When parameters were updated; of a run that was planned again, by its last plan.
    #[serde(default)]
    pub update: Update,
    /// How the schedule was found.
    pub planner: String,
    /// First and last stage of each segment; `None` where stages are recomputed in another way.
    pub segments: Option<Vec<[usize; 2]>>,
    /// Whether anything runs again: stages, operations of a recorded step, or operations inside burn's backward.
    pub recomputes: bool,
    /// The stages that the schedule is for.
    pub stages: Vec<StageRecord>,
    /// The budget, if there was one.
    pub budget_bytes: Option<Bytes>,
    /// Which bytes the budget bounds and the two peaks count.
    pub count: Count,
    /// Peak that was predicted.
    pub predicted_peak_bytes: Bytes,
    /// Peak that was measured, over everything the process did.
    pub measured_peak_bytes: Bytes,
    /// Peak of live buffers, as the meter sees it.
    pub in_use: PeakInUse,
    /// How a GPU's pools served the run.
    pub pools: Option<PoolRecord>,
    /// What the whole GPU held when the run ended, all processes and the driver included; NVIDIA only.
    pub whole_gpu_used_bytes: Option<Bytes>,
    /// Step time that was predicted.
    pub predicted_step_s: Seconds,
    /// Median of the last 1,000 step times, the first step and the traced one left out where there are others.
    pub measured_step_s: Seconds,
    /// Times of the quickest and of the slowest of these steps.
    #[serde(default)]
    pub step_range_s: Option<[Seconds; 2]>,
    /// The same training without recomputing.
    pub plain: PlainRun,
    /// Loss of the first step.
    #[serde(deserialize_with = "number")]
    pub first_loss: f64,
    /// Loss of the last step.
    #[serde(deserialize_with = "number")]
    pub last_loss: f64,
    /// Steps done.
    pub steps: usize,
    /// Samples in each step.
    pub batch: usize,
    /// Steps that were done when the run was last resumed; `None` if it never was.
    pub resumed_at: Option<usize>,
    /// Whether the run was stopped before its last step. In a record of a run that still goes on, too.
    pub interrupted: bool,
    /// Steps since the run was started or resumed whose loss or gradients were not finite: `settings.on_nonfinite` says what
    /// became of their updates.
    #[serde(default)]
    pub nonfinite_steps: usize,
    /// Plans that were made anew since then, for want of memory.
    #[serde(default)]
    pub replans: usize,
    /// The last evaluation.
    pub evaluation: Option<EvalRecord>,
    /// The evaluation with the smallest loss.
    pub best_evaluation: Option<EvalRecord>,
    /// Memory by phase of the first three steps, counted anew when a run is resumed, and of the last.
    pub phases: Vec<PhasedStep>,
    /// Memory that steps leave behind: looked for where more and more is in use; `None` where none was
    /// found.
    #[serde(default)]
    pub growth: Option<MemoryGrowth>,
    /// One step action by action, where the run left its files somewhere: the fourth after it began or was resumed, or
    /// the last if that comes first.
    pub timeline: Option<Timeline>,
}

/// Why a text is no record that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not JSON, or something is missing from it.
    #[error("not a run's record: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another version wrote it.
    #[error("a record of the format `{found}`, but this version reads `{RUN_FORMAT}`")]
    Format {
        /// The format that it names.
        found: String,
    },
}

impl RunRecord {
    /// Reads a record that was written as JSON.
    ///
    /// # Errors
    ///
    /// If it is of another format, or not whole.
    pub fn from_json(text: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Tag {
            format: String,
        }
        // Before all else: what is missing from a record of another version is not the mistake to tell.
        let tag: Tag = serde_json::from_slice(text)?;
        if tag.format != RUN_FORMAT {
            return Err(RecordError::Format { found: tag.format });
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// `(predicted - measured) / measured` of the peak.
    #[must_use]
    pub fn peak_error(&self) -> f64 {
        let measured = self.measured_peak_bytes.0 as f64;
        (self.predicted_peak_bytes.0 as f64 - measured) / measured
    }
}

/// A loss that is no number, or infinite, is `null` in JSON.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
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
        };
        let text = serde_json::to_string(&step).expect("JSON");
        let read: StepRecord = serde_json::from_str(&text).expect("what was written");
        assert!(read.loss.is_nan());
        assert_eq!(read.step_s, step.step_s);
    }
}
