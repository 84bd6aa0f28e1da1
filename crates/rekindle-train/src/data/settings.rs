//! Where samples come from, as plain values: `[data]` in a config.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    dataset::TargetKind,
    images::{CIFAR10, CLASSES, MNIST},
    text,
    text::Predict,
};
use crate::{
    invalid::{AT_LEAST_1, Invalid, first_invalid},
    model::spec::SampleShape,
};

/// A source of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// Next-byte prediction: `window` bytes of the files in, what follows out (256 classes).
    Text {
        /// Files, read in order as one stream of bytes each; no window crosses files.
        files: Vec<PathBuf>,
        /// Bytes in a sample.
        #[serde(default = "window")]
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
        shape: Vec<usize>,
        /// Number of different token ids: makes the samples token ids.
        vocab: Option<usize>,
        /// What is to be predicted: `{ classes = N }`, `{ token_classes = N }` or `{ values = N }`.
        target: TargetKind,
        /// Number of samples.
        #[serde(default = "synthetic_samples")]
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

impl Source {
    /// Checks each value by itself.
    ///
    /// # Errors
    ///
    /// The first key that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Text { files, window, .. } => first_invalid([
                (
                    !files.is_empty(),
                    "text.files",
                    "must name at least one file",
                ),
                (*window > 0, "text.window", AT_LEAST_1),
            ]),
            Self::Mnist { .. } | Self::Cifar10 { .. } => Ok(()),
            Self::Synthetic {
                shape,
                vocab,
                target:
                    TargetKind::Classes(size)
                    | TargetKind::TokenClasses(size)
                    | TargetKind::Values(size),
                samples,
                ..
            } => first_invalid([
                (
                    matches!(shape.len(), 1..=3) && !shape.contains(&0),
                    "synthetic.shape",
                    "must have one to three sizes, each at least 1",
                ),
                (*vocab != Some(0), "synthetic.vocab", AT_LEAST_1),
                (*size > 0, "synthetic.target", AT_LEAST_1),
                (*samples > 0, "synthetic.samples", AT_LEAST_1),
            ]),
        }
    }

    /// Shape of one sample, as far as it is known before any file is read.
    ///
    /// IDX folders are assumed to have MNIST's image size; other sizes are detected when the folder is opened.
    #[must_use]
    pub fn sample_shape(&self) -> SampleShape {
        match self {
            Self::Text { window, .. } => SampleShape::tokens([*window]),
            Self::Mnist { .. } => SampleShape::float(MNIST),
            Self::Cifar10 { .. } => SampleShape::float(CIFAR10),
            Self::Synthetic {
                shape, vocab: None, ..
            } => SampleShape::float(shape.as_slice()),
            Self::Synthetic { shape, .. } => SampleShape::tokens(shape.as_slice()),
        }
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
            Self::Mnist { .. } | Self::Cifar10 { .. } => TargetKind::Classes(CLASSES),
            Self::Synthetic { target, .. } => *target,
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
            target: self.target(),
            samples: synthetic_samples(),
            seed: 0,
        }
    }
}
