//! Errors of a step.

use thiserror::Error;

use crate::meter::FailedAllocation;

/// A step could not run, or its result cannot be trusted: there are no gradients. Running statistics may have changed
/// if the error came after a forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StepError {
    /// A stage's recompute returned tensors of other shapes than its first run.
    #[error(
        "stage {stage} gave tensors of shapes {again:?} when it was computed again, but {first:?} at first: its layer \
         has state that a forward changes"
    )]
    RecomputedShape {
        /// The stage.
        stage: usize,
        /// Shapes of its first output's tensors.
        first: Vec<Vec<usize>>,
        /// Shapes of the recomputed output's tensors.
        again: Vec<Vec<usize>>,
    },
    /// The device rejected a kernel of this step, or of earlier work: its results were not computed.
    #[error("the device refused a kernel: {refusal}")]
    Refused {
        /// The device's error message.
        refusal: String,
    },
    /// An allocation of the process failed, and the step was abandoned.
    #[error("{0}")]
    OutOfMemory(FailedAllocation),
    /// The schedule was made for another chain.
    #[error("the schedule is for {schedule} stages, but the model has {layers} layers")]
    LayerCount {
        /// Stages of the schedule.
        schedule: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The step runs in a rayon task, in the middle of a stage of another step that draws random numbers.
    #[error(
        "the step interrupts another one that draws random numbers on the same rayon thread: run steps on threads of their \
         own, not in rayon tasks"
    )]
    Interrupts,
    /// The input is larger than the one that the schedule was planned for.
    #[error(
        "the schedule was planned for an input of shapes {planned:?}, and this one has {got:?}: it might take more memory \
         than was planned; plan for the larger one, or cut it"
    )]
    LargerInput {
        /// Shapes of the planned input's tensors.
        planned: Vec<Vec<usize>>,
        /// Shapes of this input's tensors.
        got: Vec<Vec<usize>>,
    },
    /// The loss has more than one value.
    #[error(
        "the loss must be one number (shape [1]), but has shape [{elements}]: take its mean or sum"
    )]
    LossNotScalar {
        /// Number of values.
        elements: usize,
    },
    /// The schedule uses an alternative that the stage's layer does not have.
    #[error(
        "the schedule tracks stage {stage} by alternative {alternative}, but its layer has {}",
        if *.has_balanced { "only the default and alternative 1" } else { "only the default" }
    )]
    Alternative {
        /// The stage.
        stage: usize,
        /// The alternative in the schedule.
        alternative: usize,
        /// Whether the layer has a balanced form.
        has_balanced: bool,
    },
}

/// A one-call training step that could not run.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The number of segments does not fit the model.
    #[error(transparent)]
    Plan(#[from] rekindle_plan::PlanError),
    /// The step could not run.
    #[error(transparent)]
    Step(#[from] StepError),
}
