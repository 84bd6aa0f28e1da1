//! Determines the samples of each step.

use std::ops::Range;

use super::{error::DataError, permutation::Permutation};

/// Shuffled full mini-batches, epoch after epoch.
///
/// Each epoch has its own order, determined by the seed and the epoch. Samples left over at the end of an epoch that do
/// not fill a batch are dropped; in another epoch these are other samples. Any step's batch is computed directly, so a
/// resumed run needs only its step number.
///
/// ```
/// use rekindle_train::data::Shuffled;
///
/// let batches = Shuffled::new(10, 4, 0)?;
/// assert_eq!(batches.steps_per_epoch(), 2);
/// assert_eq!(batches.step(1_000).len(), 4);
/// # Ok::<(), rekindle_train::data::DataError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Shuffled {
    samples: usize,
    batch: usize,
    seed: u64,
}

impl Shuffled {
    /// Batches of `batch` out of `samples` samples.
    ///
    /// # Errors
    ///
    /// If `batch` is 0 or larger than `samples`.
    pub fn new(samples: usize, batch: usize, seed: u64) -> Result<Self, DataError> {
        if batch == 0 {
            let message = "the batch is 0, but must be at least 1 sample";
            return Err(DataError::Setting(message.into()));
        }
        if batch > samples {
            return Err(DataError::Setting(format!(
                "a batch of {batch} samples is larger than the data set, which has {samples}"
            )));
        }
        Ok(Self {
            samples,
            batch,
            seed,
        })
    }

    /// Batches in one epoch.
    #[must_use]
    pub fn steps_per_epoch(&self) -> usize {
        self.samples / self.batch
    }

    /// The epoch of a step; both are counted from 0.
    #[must_use]
    pub fn epoch(&self, step: usize) -> usize {
        step / self.steps_per_epoch()
    }

    /// The samples of a step, counted from 0.
    #[must_use]
    pub fn step(&self, step: usize) -> Vec<usize> {
        let order = Permutation::new(self.samples, self.seed, self.epoch(step) as u64);
        let first = step % self.steps_per_epoch() * self.batch;
        (first..first + self.batch)
            .map(|place| order.at(place))
            .collect()
    }
}

/// All of these samples once, in order; the last batch may be smaller.
pub fn in_order(
    samples: Range<usize>,
    batch: usize,
) -> impl DoubleEndedIterator<Item = Vec<usize>> {
    let (batch, end) = (batch.max(1), samples.end);
    samples
        .step_by(batch)
        .map(move |first| (first..end.min(first.saturating_add(batch))).collect())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_epoch_shows_no_sample_twice_and_drops_the_rest() {
        let batches = Shuffled::new(23, 5, 1).unwrap();
        assert_eq!(batches.steps_per_epoch(), 4);
        for epoch in 0..3 {
            let seen: HashSet<usize> = (0..4).flat_map(|k| batches.step(4 * epoch + k)).collect();
            assert_eq!(seen.len(), 20);
        }
        assert_ne!(batches.step(0), batches.step(4));
    }

    #[test]
    fn a_batch_of_everything_is_allowed_and_a_larger_one_is_not() {
        let mut all = Shuffled::new(5, 5, 0).unwrap().step(7);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert_eq!(
            Shuffled::new(5, 6, 0).unwrap_err().to_string(),
            "a batch of 6 samples is larger than the data set, which has 5"
        );
        assert!(Shuffled::new(5, 0, 0).is_err());
    }

    #[test]
    fn in_order_ends_with_what_is_left() {
        let batches: Vec<_> = in_order(0..5, 2).collect();
        assert_eq!(batches, [vec![0, 1], vec![2, 3], vec![4]]);
        // Computed directly, regardless of the number of batches.
        let last = in_order(0..usize::MAX, 2).next_back();
        assert_eq!(last, Some(vec![usize::MAX - 1]));
    }
}
