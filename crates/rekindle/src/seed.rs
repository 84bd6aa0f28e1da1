//! Seeds of a step's random numbers.
//!
//! burn's generators can be seeded but not read or restored, and one generator serves a whole process. So a step has a
//! seed of its own, from which the generator is seeded before the step, or before each run of a part that may be computed
//! again: a recompute draws the same numbers as the first forward, in whatever order parts run. The plain run draws the
//! same if it sets the same seeds.

use burn::tensor::{Device, Distribution, Int, Tensor};

/// The root seed of one training step's random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepSeed(u64);

impl StepSeed {
    /// The root seed for step number `step` of the run with seed `run`.
    #[must_use]
    pub fn new(run: u64, step: u64) -> Self {
        Self(mix(mix(run) ^ step))
    }

    /// The root seed for one of the ranks that share a step. Rank 0 draws the same numbers as a single process.
    #[doc(hidden)]
    #[must_use]
    pub fn of_rank(self, rank: usize) -> Self {
        match rank {
            0 => self,
            rank => Self(mix(mix(self.0) ^ rank as u64)),
        }
    }

    /// A root seed drawn from the device's own generator, so that [`Device::seed`] determines it.
    pub fn draw(device: &Device) -> Self {
        let range = Distribution::Uniform(0.0, f64::from(1 << 24));
        let draws: Tensor<1, Int> = Tensor::random([4], range, device);
        let root = draws
            .into_data()
            .iter::<i64>()
            .fold(0, |root, draw| mix(root ^ draw.unsigned_abs()));
        Self(root)
    }

    /// The generator's seed before segment number `segment` of
    /// [`checkpoint_sequential`](crate::checkpoint_sequential) runs; a step that runs as a whole, such as a recorded
    /// step, is segment 0.
    #[must_use]
    pub fn segment(self, segment: usize) -> u64 {
        mix(self.0 ^ mix(segment as u64 + 1))
    }

    /// The generator's seed after the step, so that later draws do not depend on the schedule.
    #[must_use]
    pub fn after(self) -> u64 {
        mix(self.0)
    }
}

/// The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection whose output bits depend on every input bit.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ranks_draw_other_numbers_and_the_first_those_of_a_process_alone() {
        let root = StepSeed::new(1, 2);
        assert_eq!(root.of_rank(0), root);
        let seeds = (0..100).map(|rank| root.of_rank(rank)).flat_map(|root| {
            let [first, second] = [0, 1].map(|segment| root.segment(segment));
            [first, second, root.after()]
        });
        assert_eq!(seeds.collect::<HashSet<u64>>().len(), 300);
    }
}
