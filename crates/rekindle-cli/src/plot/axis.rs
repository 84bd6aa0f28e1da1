//! Axes: their units, and the labels of their ticks.

use std::ops::Range;

use rekindle_plan::{Bytes, Seconds};

/// What one axis shows.
pub struct Axis {
    /// The range; an empty one is widened.
    pub range: Range<f64>,
    /// Its title, unit included.
    pub title: String,
}

impl Axis {
    /// The range, or one that plotters can divide.
    pub fn widened(&self) -> Range<f64> {
        let Range { start, end } = self.range;
        start..if end > start { end } else { start + 1.0 }
    }
}

/// A unit that makes the largest value on an axis a handy number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    size: f64,
}

impl Unit {
    /// The largest of these that goes into `most` twice or more.
    fn of<const N: usize>(most: f64, units: [(&'static str, f64); N]) -> Self {
        let fitting = units.into_iter().find(|(_, size)| most >= 2.0 * size);
        let (name, size) = fitting.unwrap_or(units[N - 1]);
        Unit { name, size }
    }

    /// For bytes up to `most`.
    pub fn of_bytes(most: Bytes) -> Self {
        let size = |bits: u32| f64::from(1 << bits);
        let units = [
            ("GiB", size(30)),
            ("MiB", size(20)),
            ("KiB", size(10)),
            ("B", 1.0),
        ];
        Self::of(most.0 as f64, units)
    }

    /// For seconds up to `most`.
    pub fn of_seconds(most: Seconds) -> Self {
        Self::of(most.0, [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)])
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

/// A tick's label, without trailing zeros.
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
        assert_eq!(Unit::of_bytes(Bytes(1 << 30)).name, "MiB");
        assert_eq!(Unit::of_bytes(Bytes(0)).name, "B");
        assert_eq!(Unit::of_seconds(Seconds(0.25)).name, "ms");
        assert_eq!(Unit::of_bytes(Bytes(40 << 20)).bytes(Bytes(20 << 20)), 20.0);
    }

    #[test]
    fn ticks_have_no_trailing_zeros() {
        assert_eq!([20.0, 0.25, 0.0].map(tick), ["20", "0.25", "0"]);
    }
}
