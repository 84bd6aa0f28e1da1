//! How a model is trained, as plain values: no backend, no tensors.

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use rekindle::{dtype::Dtype, record::Update};

/// Everything that decides the updates, apart from the model, the data and the schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSettings {
    /// Number of optimizer steps.
    pub steps: usize,
    /// Samples per step.
    pub batch: usize,
    /// Equal parts that a step's batch is run in, one after the other; their gradients add up. 1 runs it whole. Batch
    /// normalisation sees each part by itself.
    pub accumulate: usize,
    /// Seed of initial weights, shuffling and random layers.
    pub seed: u64,
    /// The type of parameters and activations.
    #[serde(default)]
    pub dtype: Dtype,
    /// What is minimised.
    pub loss: LossKind,
    /// How parameters are updated.
    pub optimizer: OptimizerSettings,
    /// The learning rate of each step.
    pub learning_rate: LearningRate,
    /// When parameters are updated: it changes what a step holds, not what it computes.
    #[serde(default)]
    pub update: Update,
    /// Bound on the gradients, if any.
    pub clip: Option<Clip>,
    /// Steps between evaluations; the last step is always evaluated.
    pub eval_every: Option<usize>,
    /// What happens where a step's loss or gradients are not finite.
    #[serde(default)]
    pub on_nonfinite: OnNonFinite,
}

impl TrainSettings {
    /// Samples that run at once.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.batch / self.accumulate.max(1)
    }
}

/// What happens where a step's loss or gradients are not finite. No snapshot is taken of a state that is not finite,
/// whatever is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// The run ends; the model is as it was before the step. Where parameters are updated in the backward pass, each
    /// gradient is checked before its own update alone: the run goes on from its last snapshot.
    #[default]
    Stop,
    /// The step counts, but parameters, optimizer state and running statistics stay as they were.
    Skip,
    /// The update is made all the same.
    Continue,
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// Mean cross entropy of logits `[batch, classes]` against class ids `[batch]`.
    CrossEntropy,
    /// Mean squared error of `[batch, values]` against targets of the same shape.
    MeanSquaredError,
}

/// How parameters are updated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerSettings {
    /// Stochastic gradient descent.
    Sgd {
        /// Momentum, 0 for none.
        momentum: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
    /// Adam (Kingma & Ba 2015).
    Adam {
        /// Decay of the first and the second moment.
        betas: [f64; 2],
        /// Added to the denominator.
        epsilon: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    AdamW {
        /// Decay of the first and the second moment.
        betas: [f64; 2],
        /// Added to the denominator.
        epsilon: f64,
        /// Decoupled decay.
        weight_decay: f64,
    },
}

/// The learning rate of each step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum LearningRate {
    /// The same at every step.
    Constant {
        /// The rate.
        rate: f64,
    },
    /// A linear warm-up to `rate`, then half a cosine down to `final_rate`.
    WarmupCosine {
        /// The largest rate.
        rate: f64,
        /// Steps until it is reached.
        warmup_steps: usize,
        /// The rate at the last step.
        final_rate: f64,
    },
}

/// Bound on the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Clip {
    /// Each value into `[-max, max]`.
    Value {
        /// The bound.
        max: f64,
    },
    /// Each tensor to an L2 norm of at most `max`.
    Norm {
        /// The bound.
        max: f64,
    },
    /// All gradients together to an L2 norm of at most `max`.
    GlobalNorm {
        /// The bound.
        max: f64,
    },
}

impl OptimizerSettings {
    /// Numbers that the optimizer keeps for each parameter.
    #[must_use]
    pub fn moments(&self) -> u64 {
        match self {
            Self::Sgd { momentum, .. } => u64::from(*momentum > 0.0),
            Self::Adam { .. } | Self::AdamW { .. } => 2,
        }
    }

    /// Bytes of state that appear in the first step for so many parameters, whose type it does not have.
    #[must_use]
    pub fn state_bytes(&self, param_count: u64) -> Bytes {
        let numbers = self.moments().saturating_mul(param_count);
        Bytes(numbers.saturating_mul(Dtype::F32.bytes()))
    }
}
