//! The settings of a training as plain values: no backend, no tensors. They are the keys of `[train]` in a config.

use rekindle_plan::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rekindle::{ChunkedCrossEntropy, dtype::Dtype, record::Update};

use crate::{
    invalid::{AT_LEAST_1, Invalid, first_invalid},
    model::stage::Stage,
};
pub use crate::{loss_scale::LossScale, nonfinite::OnNonFinite};
pub use rekindle::record::driver::StateChoice;

/// Everything that decides the updates, apart from the model, the data and the schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields, default)]
pub struct TrainSettings {
    /// Number of optimizer steps.
    pub steps: usize,
    /// Samples per step, of all ranks together where several train.
    pub batch: usize,
    /// Equal parts that a step's batch is run in, one after the other; their gradients add up. 1 runs it whole. Batch
    /// normalisation sees each part by itself.
    pub accumulate: Accumulate,
    /// Seed of initial weights, shuffling and random layers.
    pub seed: u64,
    /// The type of parameters and activations.
    pub dtype: Dtype,
    /// Whether the optimizer keeps an `f32` copy of `f16` and `bf16` parameters. Without one, updates below half a unit in a
    /// parameter's last place are lost. `f32` parameters need none. Snapshots hold the copy; `weights.safetensors` holds the
    /// model's own values, in its type.
    pub master_weights: bool,
    /// What the loss is multiplied by before its backward pass, and gradients divided by before their update. A dynamic scale
    /// begins at 65,536, falls by half where a gradient overflows, whose step is skipped, and doubles after 2,000 steps
    /// without that.
    pub loss_scale: LossScale,
    /// Chunks of rows in which the last layer, a `linear` or an `unembedding`, and cross entropy run together, so that the
    /// logits never exist whole. Chunks round sums in another order.
    pub loss_chunks: LossChunks,
    /// How parameters are updated.
    pub optimizer: OptimizerKind,
    /// Momentum of `sgd`, in `[0, 1)`; 0 for none.
    pub momentum: f64,
    /// Weight decay: an L2 penalty added to the gradient, and decoupled with `adamw`. Not set, it is 0.01 with `adamw`, and 0
    /// with the others.
    pub weight_decay: Option<f64>,
    /// Decay of the first and the second moment of `adam` and `adamw`, each in `[0, 1)`.
    pub betas: [f64; 2],
    /// What `adam` and `adamw` add to the denominator.
    pub epsilon: f64,
    /// The learning rate, the largest of its schedule. Not set, it is 0.01 with `sgd`, and 0.001 with the others.
    pub learning_rate: Option<f64>,
    /// How the learning rate changes from step to step.
    pub schedule: RateSchedule,
    /// Steps until `warmup-cosine` reaches the learning rate. Not set, it is a twentieth of `steps`.
    pub warmup_steps: Option<usize>,
    /// The learning rate at the last step of `warmup-cosine`, at most `learning_rate`.
    pub final_rate: f64,
    /// When parameters are updated. It changes what a step holds, not what it computes.
    pub update: UpdateChoice,
    /// Who keeps the optimizer's state where several ranks train. A run continues with either.
    pub optimizer_state: StateChoice,
    /// Whether batch normalisation takes mean and variance of the samples of all ranks, where several train, instead of its
    /// rank's. It then waits for the others twice in the forward and twice in the backward pass.
    pub sync_batch_norm: bool,
    /// Bound on the L2 norm of all gradients together, if any.
    pub clip_norm: Option<f64>,
    /// Share of the samples set apart for evaluation, in `[0, 1)`.
    pub eval_split: f64,
    /// Steps between evaluations; the last step is always evaluated.
    pub eval_every: Option<usize>,
    /// What happens where a step's loss or gradients are not finite.
    pub on_nonfinite: OnNonFinite,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            steps: 100,
            batch: 32,
            accumulate: Accumulate::Parts(1),
            seed: 0,
            dtype: Dtype::default(),
            master_weights: true,
            loss_scale: LossScale::default(),
            loss_chunks: LossChunks::default(),
            optimizer: OptimizerKind::default(),
            momentum: 0.0,
            weight_decay: None,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            learning_rate: None,
            schedule: RateSchedule::default(),
            warmup_steps: None,
            final_rate: 0.0,
            update: UpdateChoice::default(),
            optimizer_state: StateChoice::default(),
            sync_batch_norm: false,
            clip_norm: None,
            eval_split: 0.1,
            eval_every: None,
            on_nonfinite: OnNonFinite::default(),
        }
    }
}

const SHARE: &str = "must be at least 0 and below 1";
const ABOVE_0: &str = "must be a number above 0";
const WARMUP: &str = "belongs to `schedule = \"warmup-cosine\"`";
const NOT_NEGATIVE: &str = "must be a number of at least 0";

impl TrainSettings {
    /// Checks each value by itself, and that none contradicts another.
    ///
    /// # Errors
    ///
    /// The first key that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        let share = |number: f64| (0.0..1.0).contains(&number);
        let above_0 = |number: f64| number > 0.0 && number.is_finite();
        let not_negative = |number: f64| number >= 0.0 && number.is_finite();
        let sgd = self.optimizer == OptimizerKind::Sgd;
        let adam = Self::default();
        let adam_keys = (self.betas, self.epsilon) == (adam.betas, adam.epsilon);
        let constant = self.schedule == RateSchedule::Constant;
        let scale = match self.loss_scale {
            LossScale::Fixed(scale) => above_0(scale) && (scale as f32).is_normal(),
            _ => true,
        };
        let parts = format!("does not divide the batch of {}", self.batch);
        first_invalid([
            (self.steps > 0, "steps", AT_LEAST_1),
            (self.batch > 0, "batch", AT_LEAST_1),
            (
                self.accumulate != Accumulate::Parts(0),
                "accumulate",
                AT_LEAST_1,
            ),
            (
                self.batch.is_multiple_of(self.parts()),
                "accumulate",
                &parts,
            ),
            (scale, "loss_scale", ABOVE_0),
            (
                self.loss_chunks != LossChunks::Count(0),
                "loss_chunks",
                AT_LEAST_1,
            ),
            (share(self.momentum), "momentum", SHARE),
            (
                sgd || self.momentum == 0.0,
                "momentum",
                "belongs to `optimizer = \"sgd\"`",
            ),
            (
                self.weight_decay.is_none_or(not_negative),
                "weight_decay",
                NOT_NEGATIVE,
            ),
            (self.betas.into_iter().all(share), "betas", SHARE),
            (above_0(self.epsilon), "epsilon", ABOVE_0),
            (
                !sgd || adam_keys,
                if self.betas == adam.betas {
                    "epsilon"
                } else {
                    "betas"
                },
                "belongs to `optimizer = \"adam\"` and `\"adamw\"`",
            ),
            (above_0(self.rate()), "learning_rate", ABOVE_0),
            (
                not_negative(self.final_rate) && self.final_rate <= self.rate(),
                "final_rate",
                "must be at least 0 and at most `learning_rate`",
            ),
            (
                !constant || self.warmup_steps.is_none(),
                "warmup_steps",
                WARMUP,
            ),
            (!constant || self.final_rate == 0.0, "final_rate", WARMUP),
            (self.clip_norm.is_none_or(above_0), "clip_norm", ABOVE_0),
            (share(self.eval_split), "eval_split", SHARE),
            (self.eval_every != Some(0), "eval_every", AT_LEAST_1),
        ])
    }

    /// The same with all defaults written out that follow from other keys.
    #[must_use]
    pub fn resolved(self) -> Self {
        let warmup = self.schedule == RateSchedule::WarmupCosine;
        Self {
            weight_decay: Some(self.decay()),
            learning_rate: Some(self.rate()),
            warmup_steps: warmup.then(|| self.warmup()),
            ..self
        }
    }

    /// The weight decay, as set or by the optimizer.
    pub(crate) fn decay(&self) -> f64 {
        self.weight_decay.unwrap_or(match self.optimizer {
            OptimizerKind::AdamW => 1e-2,
            OptimizerKind::Sgd | OptimizerKind::Adam => 0.0,
        })
    }

    /// The learning rate, as set or by the optimizer.
    pub(crate) fn rate(&self) -> f64 {
        self.learning_rate.unwrap_or(match self.optimizer {
            OptimizerKind::Sgd => 1e-2,
            OptimizerKind::Adam | OptimizerKind::AdamW => 1e-3,
        })
    }

    /// The number of warm-up steps, as set or by the number of steps.
    pub(crate) fn warmup(&self) -> usize {
        self.warmup_steps.unwrap_or(self.steps / 20)
    }

    /// Numbers that the optimizer keeps for each parameter.
    #[must_use]
    pub fn moments(&self) -> u64 {
        match self.optimizer {
            OptimizerKind::Sgd => u64::from(self.momentum > 0.0),
            OptimizerKind::Adam | OptimizerKind::AdamW => 2,
        }
    }

    /// Leaves the last stage's projection to the loss, if the loss runs in chunks.
    pub(super) fn defer_projection(&self, stages: &mut [Stage]) {
        if let (Some(loss), Some(last)) = (self.loss_chunks.cross_entropy(), stages.last_mut()) {
            last.defer_projection(loss);
        }
    }

    /// Whether the optimizer keeps a copy of the parameters.
    #[must_use]
    pub fn keeps_master_weights(&self) -> bool {
        self.master_weights && self.dtype != Dtype::F32
    }

    /// How the loss is scaled; never [`LossScale::Auto`].
    #[must_use]
    pub fn loss_scale(&self) -> LossScale {
        match (self.loss_scale, self.dtype) {
            (LossScale::Auto, Dtype::F16) => LossScale::Dynamic,
            (LossScale::Auto, Dtype::F32 | Dtype::Bf16) => LossScale::None,
            (chosen, _) => chosen,
        }
    }

    /// Bytes of the optimizer's state for this many parameters, allocated in the first step. All of it is `f32`.
    #[must_use]
    pub fn state_bytes(&self, param_count: u64) -> Bytes {
        let each = self.moments() + u64::from(self.keeps_master_weights());
        let numbers = each.saturating_mul(param_count);
        Bytes(numbers.saturating_mul(Dtype::F32.bytes()))
    }

    /// Parts that a batch is run in; 1 as long as their number is not [found](crate::fit::parts).
    #[must_use]
    pub fn parts(&self) -> usize {
        match self.accumulate {
            Accumulate::Parts(parts) => parts.max(1),
            Accumulate::Auto => 1,
        }
    }

    /// Samples that run at once.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.batch / self.parts()
    }
}

/// In how many parts a batch is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "snake_case",
    expecting = "expected a number of parts, or \"auto\""
)]
pub enum Accumulate {
    /// In as many as are the fastest within the budget, by shapes; in one without a budget.
    Auto,
    /// In so many.
    #[serde(untagged)]
    Parts(usize),
}

/// When a training updates its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateChoice {
    /// After the backward pass; in it where a budget is not met otherwise.
    #[default]
    Auto,
    /// After the backward pass.
    After,
    /// In the backward pass, each parameter as soon as its gradient is complete.
    InBackward,
}

impl UpdateChoice {
    /// What is asked for, if anything is.
    #[must_use]
    pub fn fixed(self) -> Option<Update> {
        match self {
            Self::Auto => None,
            Self::After => Some(Update::After),
            Self::InBackward => Some(Update::InBackward),
        }
    }
}

impl From<Update> for UpdateChoice {
    fn from(update: Update) -> Self {
        match update {
            Update::After => Self::After,
            Update::InBackward => Self::InBackward,
        }
    }
}

/// Whether the last projection and its loss run in chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "snake_case",
    expecting = "expected a number of chunks, \"auto\" or \"whole\""
)]
pub enum LossChunks {
    /// One after the other, on all rows.
    #[default]
    Whole,
    /// In as many chunks as make a chunk's logits no larger than the weight.
    Auto,
    /// In so many chunks.
    #[serde(untagged)]
    Count(usize),
}

impl LossChunks {
    /// The loss that runs in chunks, if it does.
    #[must_use]
    pub fn cross_entropy(self) -> Option<ChunkedCrossEntropy> {
        match self {
            Self::Whole => None,
            Self::Auto => Some(ChunkedCrossEntropy::new()),
            Self::Count(count) => Some(ChunkedCrossEntropy::new().with_chunks(count)),
        }
    }
}

/// How parameters are updated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Stochastic gradient descent.
    Sgd,
    /// Adam (Kingma & Ba 2015).
    #[default]
    Adam,
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    AdamW,
}

/// How the learning rate changes from step to step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RateSchedule {
    /// The same at every step.
    #[default]
    Constant,
    /// A linear warm-up, then half a cosine down to the final rate.
    WarmupCosine,
}
