//! Units and ticks.

use rekindle_plan::{Bytes, Seconds};

/// A unit that makes the largest value on an axis a handy number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// How much of the plain unit it is.
    pub size: f64,
}

impl Unit {
    /// For bytes up to `most`.
    pub fn of_bytes(most: Bytes) -> Self {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let fitting = units.into_iter().find(|(_, bits)| most.0 >> bits >= 2);
        fitting.map_or(
            Unit {
                name: "B",
                size: 1.0,
            },
            |(name, bits)| Unit {
                name,
                size: (1_u64 << bits) as f64,
            },
        )
    }

    /// For seconds up to `most`.
    pub fn of_seconds(most: Seconds) -> Self {
        let units = [("s", 1.0), ("ms", 1e-3)];
        let fitting = units.into_iter().find(|(_, size)| most.0 >= 2.0 * size);
        let (name, size) = fitting.unwrap_or(("µs", 1e-6));
        Unit { name, size }
    }

    /// Bytes in this unit.
    pub fn bytes(self, bytes: Bytes) -> f64 {
        bytes.0 as f64 / self.size
    }

    /// Seconds in this unit.
    pub fn seconds(self, seconds: Seconds) -> f64 {
        seconds.0 / self.size
    }
}

/// A tick's label, without zeros that say nothing.
pub fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_is_a_handy_number() {
        assert_eq!(Unit::of_bytes(Bytes(40 << 20)).name, "MiB");
        assert_eq!(Unit::of_bytes(Bytes(3 << 30)).name, "GiB");
        assert_eq!(Unit::of_bytes(Bytes(1 << 30)).name, "MiB");
        assert_eq!(Unit::of_bytes(Bytes(0)).name, "B");
        assert_eq!(Unit::of_seconds(Seconds(0.25)).name, "ms");
        assert_eq!(Unit::of_seconds(Seconds(0.0)).name, "µs");
        assert_eq!(Unit::of_bytes(Bytes(40 << 20)).bytes(Bytes(20 << 20)), 20.0);
    }

    #[test]
    fn ticks_have_no_zeros_to_spare() {
        assert_eq!(tick(20.0), "20");
        assert_eq!(tick(0.25), "0.25");
        assert_eq!(tick(0.0), "0");
    }
}
