//! A mini-batch on the host, before it becomes tensors.

use rekindle_plan::Bytes;

use rekindle::dtype::Dtype;

/// Samples and targets of one step, row-major with the batch dimension first.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// What the model takes.
    pub inputs: Inputs,
    /// What it should predict.
    pub targets: Targets,
}

impl Batch {
    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        let (Inputs::Floats { shape, .. } | Inputs::Tokens { shape, .. }) = &self.inputs;
        shape.first().copied().unwrap_or(0)
    }

    /// Bytes of its values on a device, with inputs in this type.
    #[must_use]
    pub fn bytes(&self, dtype: Dtype) -> Bytes {
        let inputs = match &self.inputs {
            Inputs::Floats { values, .. } => values.len() as u64 * dtype.bytes(),
            Inputs::Tokens { values, .. } => size_of_val(values.as_slice()) as u64,
        };
        let targets = match &self.targets {
            Targets::Classes(classes) => size_of_val(classes.as_slice()),
            Targets::Values { values, .. } => size_of_val(values.as_slice()),
        };
        Bytes(inputs + targets as u64)
    }
}

/// What the model takes.
#[derive(Debug, Clone, PartialEq)]
pub enum Inputs {
    /// Numbers of shape `shape`, the batch first.
    Floats {
        /// The values.
        values: Vec<f32>,
        /// Sizes, the batch first.
        shape: Vec<usize>,
    },
    /// Token ids of shape `shape`, the batch first.
    Tokens {
        /// The ids.
        values: Vec<i32>,
        /// Sizes, the batch first.
        shape: Vec<usize>,
    },
}

/// What the model should predict.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// A class id for each sample, or for each token id of each sample.
    Classes(Vec<i32>),
    /// `width` numbers for each sample.
    Values {
        /// The numbers, sample by sample.
        values: Vec<f32>,
        /// Number of values per sample.
        width: usize,
    },
}

impl Targets {
    /// Number of predictions: one for each sample, or for each token id.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Classes(classes) => classes.len(),
            Self::Values { values, width } => values.len() / width.max(&1),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
