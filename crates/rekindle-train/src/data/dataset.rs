//! The interface of every source of samples.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::batch::Batch;
use crate::model::spec::SampleShape;

/// Samples that can be read in any order.
pub trait Dataset: Send + Sync {
    /// The number of samples, at least 1.
    fn len(&self) -> usize;

    /// Always false: a source without samples cannot be opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shape of one sample.
    fn sample_shape(&self) -> SampleShape;

    /// The kind of target.
    fn target(&self) -> TargetKind;

    /// An object that distinguishes it from another data set of the same size: two data sets with the same identity, length
    /// and shapes have the same samples. Reads all samples.
    fn identity(&self) -> Value;

    /// The samples with these numbers, in this order.
    ///
    /// # Panics
    ///
    /// If a number is not below [`len`](Self::len).
    fn batch(&self, indices: &[usize]) -> Batch;
}

/// The target of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// One of this many classes.
    Classes(usize),
    /// One of this many classes for each token id of the sample.
    TokenClasses(usize),
    /// This many real numbers.
    Values(usize),
}

/// The identity of samples made of these bytes: their CRC-32.
pub(super) fn contents<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Value {
    let mut sum = crc32fast::Hasher::new();
    for bytes in pieces {
        sum.update(&(bytes.len() as u64).to_le_bytes());
        sum.update(bytes);
    }
    json!({ "contents": format!("{:08x}", sum.finalize()) })
}
