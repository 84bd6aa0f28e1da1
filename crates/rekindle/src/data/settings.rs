//! Where samples come from, as plain values.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where samples come from, and how many are set apart for evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// The source.
    pub source: Source,
    /// Share of the samples set apart for evaluation, in `[0, 1)`.
    pub eval_split: f64,
}

/// A source of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// Next-byte prediction: `window` bytes of the files in, the byte that follows out (256 classes).
    Text {
        /// Files, read in order as one stream of bytes each; no window crosses files.
        files: Vec<PathBuf>,
        /// Bytes in a sample.
        window: usize,
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
        /// What is to be predicted.
        target: SyntheticTarget,
        /// Number of samples.
        samples: usize,
        /// The seed.
        seed: u64,
    },
}

/// What a synthetic sample's target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SyntheticTarget {
    /// `values` real numbers.
    Regression {
        /// How many.
        values: usize,
    },
    /// One of `classes` classes.
    Classes {
        /// How many.
        classes: usize,
    },
}
