//! Where samples come from, as plain values.

use std::path::PathBuf;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Map, Value};

use super::{cifar10, dataset::TargetKind, mnist, text, text::Predict};
use crate::{
    model::spec::{ElementKind, SampleShape},
    short_form,
};

/// Where samples come from, and how many are set apart for evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = short_form::spread_properties)]
pub struct DataSettings {
    /// The source. It allows no keys but its own and those beside it here.
    #[serde(flatten)]
    pub source: Source,
    /// Share of the samples set apart for evaluation, in `[0, 1)`.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub eval_split: f64,
}

fn tenth() -> f64 {
    0.1
}

/// A source of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// Next-byte prediction: `window` bytes of the files in, what follows out (256 classes).
    Text {
        /// Files, read in order as one stream of bytes each; no window crosses files.
        #[serde(deserialize_with = "short_form::one_or_more")]
        #[schemars(schema_with = "short_form::files_schema")]
        files: Vec<PathBuf>,
        /// Bytes in a sample.
        #[serde(default = "window")]
        #[schemars(range(min = 1))]
        window: usize,
        /// What is to be predicted.
        #[serde(default)]
        predict: Predict,
    },
    /// MNIST or any data set in its IDX form: `[1, rows, cols]` in `[0, 1]`, 10 classes.
    Mnist {
        /// Folder with the IDX files, plain or `.gz`.
        folder: PathBuf,
    },
    /// CIFAR-10's binary version: `[3, 32, 32]` in `[0, 1]`, 10 classes.
    Cifar10 {
        /// Folder with `data_batch_1.bin` and so on.
        folder: PathBuf,
    },
    /// Random numbers from a seed, with targets that can be learnt from them.
    Synthetic {
        /// Shape of one sample; token ids below `vocab` when that is given.
        #[schemars(inner(range(min = 1)))]
        shape: Vec<usize>,
        /// Number of different token ids: makes the samples token ids.
        #[schemars(range(min = 1))]
        vocab: Option<usize>,
        /// What is to be predicted: `{ classes = N }`, `{ token_classes = N }` or `{ values = N }`.
        #[serde(deserialize_with = "target")]
        target: SyntheticTarget,
        /// Number of samples.
        #[serde(default = "synthetic_samples")]
        #[schemars(range(min = 1))]
        samples: usize,
        /// The seed.
        #[serde(default)]
        seed: u64,
    },
}

fn window() -> usize {
    64
}

/// Samples are drawn when they are read, so a large number costs nothing.
fn synthetic_samples() -> usize {
    10_000
}

/// What a synthetic sample's target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(transform = without_type, extend("x-expected" = "one of { classes = N }, { token_classes = N } and { values = N }"))]
pub enum SyntheticTarget {
    /// `values` real numbers.
    Regression {
        /// How many numbers.
        #[schemars(range(min = 1))]
        values: usize,
    },
    /// One of `classes` classes.
    Classes {
        /// How many classes.
        #[schemars(range(min = 1))]
        classes: usize,
    },
    /// One of `token_classes` classes for each token id.
    TokenClasses {
        /// How many classes.
        #[schemars(range(min = 1))]
        token_classes: usize,
    },
}

/// Reads a target whose `type` may be omitted, because its other key determines it.
fn target<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SyntheticTarget, D::Error> {
    let mut table = Map::deserialize(deserializer)?;
    let has = |key: &&str| table.contains_key(*key);
    let kind = ["classes", "token_classes"].into_iter().find(has);
    let kind = kind.unwrap_or("regression");
    table.entry("type").or_insert_with(|| kind.into());
    SyntheticTarget::deserialize(Value::Object(table)).map_err(D::Error::custom)
}

fn without_type(schema: &mut Schema) {
    let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
    for variant in variants.into_iter().flatten() {
        if let Some(required) = variant["required"].as_array_mut() {
            required.retain(|key| key != "type");
        }
    }
}

impl Source {
    /// Shape of one sample, as far as it is known before any file is read.
    ///
    /// IDX folders are assumed to have MNIST's image size; other sizes are detected when the folder is opened.
    #[must_use]
    pub fn sample_shape(&self) -> SampleShape {
        let (kind, dims) = match self {
            Self::Text { window, .. } => (ElementKind::Token, vec![*window]),
            Self::Mnist { .. } => (ElementKind::Float, mnist::DIMS.to_vec()),
            Self::Cifar10 { .. } => (ElementKind::Float, cifar10::DIMS.to_vec()),
            Self::Synthetic {
                shape, vocab: None, ..
            } => (ElementKind::Float, shape.clone()),
            Self::Synthetic { shape, .. } => (ElementKind::Token, shape.clone()),
        };
        SampleShape { kind, dims }
    }

    /// Number of different token ids, if samples are token ids.
    #[must_use]
    pub fn vocab(&self) -> Option<usize> {
        match self {
            Self::Text { .. } => Some(text::CLASSES),
            Self::Mnist { .. } | Self::Cifar10 { .. } => None,
            Self::Synthetic { vocab, .. } => *vocab,
        }
    }

    /// What is to be predicted.
    #[must_use]
    pub fn target(&self) -> TargetKind {
        match self {
            Self::Text { predict, .. } => predict.target(),
            Self::Mnist { .. } => TargetKind::Classes(mnist::CLASSES),
            Self::Cifar10 { .. } => TargetKind::Classes(cifar10::CLASSES),
            Self::Synthetic { target, .. } => match *target {
                SyntheticTarget::Classes { classes } => TargetKind::Classes(classes),
                SyntheticTarget::TokenClasses { token_classes } => {
                    TargetKind::TokenClasses(token_classes)
                }
                SyntheticTarget::Regression { values } => TargetKind::Values(values),
            },
        }
    }

    /// Settings for random samples like those of this source: the same shape, token ids and targets. Reads no files.
    #[must_use]
    pub fn synthetic_like(&self) -> Self {
        if matches!(self, Self::Synthetic { .. }) {
            return self.clone();
        }
        Self::Synthetic {
            shape: self.sample_shape().dims,
            vocab: self.vocab(),
            target: match self.target() {
                TargetKind::Classes(classes) => SyntheticTarget::Classes { classes },
                TargetKind::TokenClasses(token_classes) => {
                    SyntheticTarget::TokenClasses { token_classes }
                }
                TargetKind::Values(values) => SyntheticTarget::Regression { values },
            },
            samples: synthetic_samples(),
            seed: 0,
        }
    }
}
