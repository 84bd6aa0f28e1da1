//! The settings of a training as plain values: no backend, no tensors.

use std::{fmt, str::FromStr};

use rekindle_plan::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use rekindle::{ChunkedCrossEntropy, dtype::Dtype};

use crate::{
    loss_scale::LossScale, model::stage::Stage, optimizer_state::StateChoice, short_form,
    update::UpdateChoice,
};

/// Everything that decides the updates, apart from the model, the data and the schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = short_form::with_following_defaults)]
pub struct TrainSettings {
    /// Number of optimizer steps.
    #[schemars(range(min = 1))]
    pub steps: usize,
    /// Samples per step, of all ranks together where several train.
    #[schemars(range(min = 1))]
    pub batch: usize,
    /// Equal parts that a step's batch is run in, one after the other; their gradients add up. 1 runs it whole. Batch
    /// normalisation sees each part by itself.
    #[schemars(range(min = 1))]
    pub accumulate: usize,
    /// Seed of initial weights, shuffling and random layers.
    pub seed: u64,
    /// The type of parameters and activations: `f32`, `f16` or `bf16`.
    #[schemars(extend("enum" = Dtype::ALL), with = "String")]
    pub dtype: Dtype,
    /// Whether the optimizer keeps an `f32` copy of `f16` and `bf16` parameters. Without one, updates below half a unit in a
    /// parameter's last place are lost. `f32` parameters need none. Snapshots hold the copy; `weights.safetensors` holds the
    /// model's own values, in its type.
    pub master_weights: bool,
    /// What the loss is multiplied by before its backward pass, and gradients divided by before their update: a number,
    /// `dynamic`, `none`, or `auto` for `dynamic` with `f16` and `none` with the others. A dynamic scale begins at 65,536, falls
    /// by half where a gradient overflows, whose step is skipped, and doubles after 2,000 steps without that.
    #[schemars(schema_with = "LossScale::schema")]
    pub loss_scale: LossScale,
    /// What is minimised.
    #[schemars(extend("x-default" = "what fits the data's targets"))]
    pub loss: LossKind,
    /// Chunks of rows in which the last layer, a `linear` or an `unembedding`, and cross entropy run together, so that the logits never exist
    /// whole: a number, `auto` for chunks whose logits are no larger than the layer's weight, or `whole` for none. Chunks
    /// round sums in another order.
    #[schemars(schema_with = "loss_chunks_schema")]
    pub loss_chunks: LossChunks,
    /// How parameters are updated: a table, or its `type` alone.
    #[serde(deserialize_with = "short_form::named")]
    #[schemars(schema_with = "short_form::named_schema::<OptimizerSettings>")]
    pub optimizer: OptimizerSettings,
    /// The learning rate of each step: a number, or a table.
    #[serde(deserialize_with = "rate_or_table")]
    #[schemars(schema_with = "rate_or_table_schema", extend("x-default" = usual_rates()))]
    pub learning_rate: LearningRate,
    /// When parameters are updated: `after` the backward pass, or `in-backward`, each as soon as its gradient is complete.
    /// `auto` updates in the backward pass where a budget is not met otherwise, and with `on_nonfinite = "continue"` also
    /// where that is faster. It changes what a step holds, not what it computes.
    #[schemars(schema_with = "update_schema")]
    pub update: UpdateChoice,
    /// Who keeps the optimizer's state where several ranks train. A run continues with either.
    pub optimizer_state: StateChoice,
    /// Whether batch normalisation takes mean and variance of the samples of all ranks, where several train, instead of its
    /// rank's. It then waits for the others twice in the forward and twice in the backward pass.
    pub sync_batch_norm: bool,
    /// Bound on the gradients, if any.
    pub clip: Option<Clip>,
    /// Steps between evaluations; the last step is always evaluated.
    #[schemars(range(min = 1))]
    pub eval_every: Option<usize>,
    /// What happens where a step's loss or gradients are not finite.
    pub on_nonfinite: OnNonFinite,
}

impl Default for TrainSettings {
    fn default() -> Self {
        let optimizer = OptimizerSettings::default();
        Self {
            steps: 100,
            batch: 32,
            accumulate: 1,
            seed: 0,
            dtype: Dtype::default(),
            master_weights: true,
            loss_scale: LossScale::default(),
            loss: LossKind::CrossEntropy,
            loss_chunks: LossChunks::default(),
            learning_rate: LearningRate::Constant {
                rate: optimizer.usual_rate(),
            },
            optimizer,
            update: UpdateChoice::default(),
            optimizer_state: StateChoice::default(),
            sync_batch_norm: false,
            clip: None,
            eval_every: None,
            on_nonfinite: OnNonFinite::default(),
        }
    }
}

fn loss_chunks_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string", "enum": ["whole", "auto"] }],
        "x-expected": "a number of chunks, \"auto\" or \"whole\"",
    })
}

fn update_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [UpdateChoice::Auto, UpdateChoice::After, UpdateChoice::InBackward] })
}

impl TrainSettings {
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
        let each = self.optimizer.moments() + u64::from(self.keeps_master_weights());
        let numbers = each.saturating_mul(param_count);
        Bytes(numbers.saturating_mul(Dtype::F32.bytes()))
    }

    /// Bytes of the `f32` sum of gradients that is kept while a batch runs in parts.
    #[must_use]
    pub fn accumulated_bytes(&self, param_count: u64) -> Bytes {
        match self.accumulate {
            0 | 1 => Bytes::ZERO,
            _ => Bytes(param_count.saturating_mul(Dtype::F32.bytes())),
        }
    }

    /// Samples that run at once.
    #[must_use]
    pub fn micro_batch(&self) -> usize {
        self.batch / self.accumulate.max(1)
    }
}

/// What happens where a step's loss or gradients are not finite. No snapshot is taken of a state that is not finite,
/// whatever is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// The run ends; the model is as it was before the step. Where parameters are updated in the backward pass, each
    /// gradient is checked before its own update alone: the run continues from its last snapshot.
    #[default]
    Stop,
    /// The step counts, but parameters, optimizer state and running statistics stay as they were.
    Skip,
    /// The update is made all the same.
    Continue,
}

/// Whether the last projection and its loss run in chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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

impl FromStr for LossChunks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("whole", _) => Ok(Self::Whole),
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) if count > 0 => Ok(Self::Count(count)),
            _ => Err(format!(
                "unknown number of chunks `{text}`: expected whole, auto or a number of at least 1"
            )),
        }
    }
}

impl fmt::Display for LossChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for LossChunks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        short_form::number_or_word(deserializer)
    }
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// Mean cross entropy of logits `[batch, classes]` against class ids `[batch]`, or of `[batch, length, classes]` against
    /// `[batch, length]`.
    CrossEntropy,
    /// Mean squared error of `[batch, values]` against targets of the same shape.
    MeanSquaredError,
}

/// How parameters are updated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerSettings {
    /// Stochastic gradient descent.
    Sgd {
        /// Momentum, 0 for none.
        #[serde(default)]
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        momentum: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0))]
        weight_decay: f64,
    },
    /// Adam (Kingma & Ba 2015).
    Adam {
        /// Decay of the first and the second moment.
        #[serde(default = "betas")]
        #[schemars(schema_with = "betas_schema")]
        betas: [f64; 2],
        /// Added to the denominator.
        #[serde(default = "adam_epsilon")]
        #[schemars(extend("exclusiveMinimum" = 0))]
        epsilon: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0))]
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    #[serde(rename = "adamw", alias = "adam_w")]
    AdamW {
        /// Decay of the first and the second moment.
        #[serde(default = "betas")]
        #[schemars(schema_with = "betas_schema")]
        betas: [f64; 2],
        /// Added to the denominator.
        #[serde(default = "adam_epsilon")]
        #[schemars(extend("exclusiveMinimum" = 0))]
        epsilon: f64,
        /// Decoupled decay.
        #[serde(default = "decoupled_decay")]
        #[schemars(range(min = 0))]
        weight_decay: f64,
    },
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn betas_schema(_: &mut SchemaGenerator) -> Schema {
    let share = json_schema!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 });
    json_schema!({ "type": "array", "items": share, "minItems": 2, "maxItems": 2 })
}

fn adam_epsilon() -> f64 {
    1e-8
}

fn decoupled_decay() -> f64 {
    1e-2
}

/// Adam with the usual numbers.
impl Default for OptimizerSettings {
    fn default() -> Self {
        Self::Adam {
            betas: betas(),
            epsilon: adam_epsilon(),
            weight_decay: 0.0,
        }
    }
}

/// [`OptimizerSettings::usual_rate`] in words.
fn usual_rates() -> String {
    let adam = OptimizerSettings::default().usual_rate();
    let sgd = OptimizerSettings::Sgd {
        momentum: 0.0,
        weight_decay: 0.0,
    };
    let sgd = sgd.usual_rate();
    format!("{sgd} with `sgd`, {adam} with `adam` and `adamw`")
}

/// The learning rate of each step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(transform = short_form::with_following_defaults)]
pub enum LearningRate {
    /// The same at every step.
    Constant {
        /// The rate.
        #[schemars(extend("exclusiveMinimum" = 0, "x-default" = usual_rates()))]
        rate: f64,
    },
    /// A linear warm-up to `rate`, then half a cosine down to `final_rate`.
    WarmupCosine {
        /// The largest rate.
        #[schemars(extend("exclusiveMinimum" = 0, "x-default" = usual_rates()))]
        rate: f64,
        /// Steps until it is reached.
        #[schemars(extend("x-default" = "a twentieth of `steps`"))]
        warmup_steps: usize,
        /// The rate at the last step, at most `rate`.
        #[serde(default)]
        #[schemars(range(min = 0))]
        final_rate: f64,
    },
}

impl LearningRate {
    /// The default number of warm-up steps of a run with `steps` steps.
    #[must_use]
    pub fn usual_warmup(steps: usize) -> usize {
        steps / 20
    }
}

/// Reads a rate that never changes, or a table.
fn rate_or_table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LearningRate, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Rate(f64),
        Table(LearningRate),
    }
    Form::deserialize(deserializer).map(|form| match form {
        Form::Rate(rate) => LearningRate::Constant { rate },
        Form::Table(table) => table,
    })
}

fn rate_or_table_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            { "type": "number", "exclusiveMinimum": 0 },
            generator.subschema_for::<LearningRate>(),
        ],
    })
}

/// Bound on the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Clip {
    /// Each value into `[-max, max]`.
    Value {
        /// The bound.
        #[schemars(extend("exclusiveMinimum" = 0))]
        max: f64,
    },
    /// Each tensor to an L2 norm of at most `max`.
    Norm {
        /// The bound.
        #[schemars(extend("exclusiveMinimum" = 0))]
        max: f64,
    },
    /// All gradients together to an L2 norm of at most `max`.
    GlobalNorm {
        /// The bound.
        #[schemars(extend("exclusiveMinimum" = 0))]
        max: f64,
    },
}

impl OptimizerSettings {
    /// The default learning rate.
    #[must_use]
    pub fn usual_rate(&self) -> f64 {
        match self {
            Self::Sgd { .. } => 1e-2,
            Self::Adam { .. } | Self::AdamW { .. } => 1e-3,
        }
    }

    /// Numbers that the optimizer keeps for each parameter.
    #[must_use]
    pub fn moments(&self) -> u64 {
        match self {
            Self::Sgd { momentum, .. } => u64::from(*momentum > 0.0),
            Self::Adam { .. } | Self::AdamW { .. } => 2,
        }
    }
}
