//! A mini-batch on the host, before it becomes tensors.

use rekindle_plan::Bytes;

use rekindle::dtype::Dtype;

/// Samples and targets of one step, row-major with the batch dimension first.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Sizes of the inputs, the batch first.
    pub shape: Vec<usize>,
    /// What the model takes.
    pub inputs: Inputs,
    /// What it should predict.
    pub targets: Targets,
}

impl Batch {
    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Number of predictions: one for each sample, or for each token id.
    #[must_use]
    pub fn predictions(&self) -> usize {
        match &self.targets {
            Targets::Classes(classes) => classes.len(),
            Targets::Values { values, width } => values.len() / width.max(&1),
        }
    }

    /// Bytes of its values on a device, with inputs in this type.
    #[must_use]
    pub fn bytes(&self, dtype: Dtype) -> Bytes {
        let inputs = match &self.inputs {
            Inputs::Floats(numbers) => numbers.len() as u64 * dtype.bytes(),
            Inputs::Tokens(ids) => size_of_val(ids.as_slice()) as u64,
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
    /// Numbers.
    Floats(Vec<f32>),
    /// Token ids.
    Tokens(Vec<i32>),
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
