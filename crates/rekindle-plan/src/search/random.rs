//! Random numbers of the search.

/// SplitMix64 (Steele, Lea & Flood 2014): the same sequence in every run.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x9E37_79B9_7F4A_7C15)
    }
}

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A number from 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something of this probability happens.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    /// A number near another: the more noise, the farther.
    pub(super) fn near(&mut self, number: f64, noise: f64) -> f64 {
        match noise > 0.0 {
            true => number * (noise * (self.share() - 0.5)).exp(),
            false => number,
        }
    }
}
