//! The interface of every source of samples.

use super::{batch::Batch, identity::Identity};
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

    /// Distinguishes it from another data set of the same size. Reads all samples.
    fn identity(&self) -> Identity;

    /// The samples with these numbers, in this order.
    ///
    /// # Panics
    ///
    /// If a number is not below [`len`](Self::len).
    fn batch(&self, indices: &[usize]) -> Batch;
}

/// The target of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// One of this many classes.
    Classes(usize),
    /// One of this many classes for each token id of the sample.
    TokenClasses(usize),
    /// This many real numbers.
    Values(usize),
}
