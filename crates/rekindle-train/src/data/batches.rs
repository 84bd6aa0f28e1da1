//! Determines the samples of each step.

use std::ops::Range;

use crate::file_error::FileError;

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
/// assert_eq!(batches.samples(1_000, 0..4).len(), 4);
/// # Ok::<(), rekindle_train::FileError>(())
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
    pub fn new(samples: usize, batch: usize, seed: u64) -> Result<Self, FileError> {
        if batch == 0 {
            let message = "the batch is 0, but must be at least 1 sample";
            return Err(FileError::setting(message));
        }
        if batch > samples {
            return Err(too_large(batch, samples));
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

    /// The samples at these places of a step's batch, which are below its size; steps and epochs are counted from 0.
    #[must_use]
    pub fn samples(&self, step: usize, places: Range<usize>) -> Vec<usize> {
        let per_epoch = self.steps_per_epoch();
        let order = Permutation::new(self.samples, self.seed, (step / per_epoch) as u64);
        let first = step % per_epoch * self.batch;
        places.map(|place| order.at(first + place)).collect()
    }
}

/// The error of a batch that is larger than the data set.
pub(crate) fn too_large(batch: usize, samples: usize) -> FileError {
    FileError::setting(format!(
        "a batch of {batch} samples is larger than the data set, which has {samples}"
    ))
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

const ROUNDS: usize = 8;

/// A random order of `0..len` that is computed, not stored.
///
/// A balanced Feistel network over the next even power of two, with cycle walking: a number outside of `0..len` is
/// mapped again until it is inside (Black & Rogaway 2002, "Ciphers with arbitrary finite domains", method 3). Each
/// position takes fewer than four passes on average and no memory, so a run of any length can be resumed at any step,
/// and the order of a billion text windows uses none of the budget.
///
/// It is meant for shuffling, not for cryptography.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The order of `0..len` for a seed and an epoch.
    pub(super) fn new(len: usize, seed: u64, epoch: u64) -> Self {
        let len = len as u64;
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut state = mix(seed).wrapping_add(mix(!epoch));
        let keys = [(); ROUNDS].map(|()| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Self {
            len,
            half_bits: bits.div_ceil(2),
            keys,
        }
    }

    /// The number at a position of the order, which must be below the length.
    pub(super) fn at(&self, place: usize) -> usize {
        let mut value = place as u64;
        assert!(
            value < self.len,
            "place {place} in an order of {}",
            self.len
        );
        loop {
            value = self.pass(value);
            if value < self.len {
                return value as usize;
            }
        }
    }

    fn pass(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea & Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
            let seen: HashSet<usize> = (0..4)
                .flat_map(|k| batches.samples(4 * epoch + k, 0..5))
                .collect();
            assert_eq!(seen.len(), 20);
        }
        assert_ne!(batches.samples(0, 0..5), batches.samples(4, 0..5));
        assert_eq!(batches.samples(2, 1..3), batches.samples(2, 0..5)[1..3]);
    }

    #[test]
    fn a_batch_of_everything_is_allowed_and_a_larger_one_is_not() {
        let mut all = Shuffled::new(5, 5, 0).unwrap().samples(7, 0..5);
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

    fn order(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).map(|place| permutation.at(place)).collect()
    }

    #[test]
    fn every_number_comes_once() {
        for len in (1..70).chain([255, 256, 257, 1000, 4097]) {
            let mut seen = order(len, 3, 5);
            seen.sort_unstable();
            assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seeds_and_epochs_give_other_orders() {
        let first = order(1000, 0, 0);
        for (seed, epoch) in [(0, 1), (1, 0), (1, 1)] {
            let same = order(1000, seed, epoch)
                .iter()
                .zip(&first)
                .filter(|(a, b)| a == b)
                .count();
            assert!(same < 10, "{same} of 1000 places hold the same number");
        }
    }

    /// Over many seeds each number comes first about equally often.
    #[test]
    fn the_first_place_is_fair() {
        let mut counts = [0; 10];
        for seed in 0..10_000 {
            counts[Permutation::new(10, seed, 0).at(0)] += 1;
        }
        // Binomial(10,000, 0.1) has a standard deviation of 30; this is five of them.
        assert!(
            counts.iter().all(|count| (850..=1150).contains(count)),
            "{counts:?}"
        );
    }
}
