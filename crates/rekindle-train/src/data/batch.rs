//! A mini-batch on the host, before it becomes tensors.

use rekindle_plan::Bytes;

use rekindle::dtype::Dtype;

/// Samples and targets of one step, row-major with the batch dimension first.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Sizes of the inputs, the batch first.
    pub shape: Vec<usize>,
    /// What the model takes: numbers, or token ids.
    pub inputs: Numbers,
    /// What it should predict: as many numbers for each sample, or a class id for each sample or for each token id.
    pub targets: Numbers,
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
            Numbers::Ids(classes) => classes.len(),
            Numbers::Floats(_) => self.samples(),
        }
    }

    /// Bytes of its values on a device, with inputs in this type.
    #[must_use]
    pub fn bytes(&self, dtype: Dtype) -> Bytes {
        Bytes(self.inputs.bytes(dtype) + self.targets.bytes(Dtype::F32))
    }
}

/// The values of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Real numbers.
    Floats(Vec<f32>),
    /// Ids of tokens or classes.
    Ids(Vec<i32>),
}

impl Numbers {
    fn bytes(&self, dtype: Dtype) -> u64 {
        match self {
            Self::Floats(numbers) => numbers.len() as u64 * dtype.bytes(),
            Self::Ids(ids) => size_of_val(ids.as_slice()) as u64,
        }
    }
}
