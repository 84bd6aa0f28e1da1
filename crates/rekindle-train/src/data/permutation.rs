//! A random order of `0..len` that is computed, not stored.
//!
//! A balanced Feistel network over the next even power of two, with cycle walking: a number outside of `0..len` is
//! mapped again until it is inside (Black & Rogaway 2002, "Ciphers with arbitrary finite domains", method 3). Each
//! position takes fewer than four passes on average and no memory, so a run of any length can be resumed at any step,
//! and the order of a billion text windows uses none of the budget.
//!
//! It is meant for shuffling, not for cryptography.

const ROUNDS: usize = 8;

/// A bijection of `0..len` onto itself.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The order of `0..len` for a seed and an epoch.
    #[must_use]
    pub fn new(len: usize, seed: u64, epoch: u64) -> Self {
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

    /// The number at a position of the order.
    ///
    /// # Panics
    ///
    /// If `place` is not below the length.
    #[must_use]
    pub fn at(&self, place: usize) -> usize {
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
mod tests {
    use super::*;

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
