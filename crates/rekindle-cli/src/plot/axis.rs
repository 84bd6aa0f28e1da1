//! An axis of bytes or seconds, which begins at zero.

use rekindle_plan::{Bytes, Seconds};

/// One axis.
pub struct Axis {
    /// The value at its end.
    end: f64,
    /// The unit of its labels: one that makes the largest value a handy number.
    unit: f64,
    /// What it shows, with the unit's name.
    pub title: String,
}

impl Axis {
    /// Bytes up to `room` times `most`.
    pub fn of_bytes(what: &str, most: Bytes, room: f64) -> Self {
        let size = |bits: u32| f64::from(1 << bits);
        let units = [
            ("GiB", size(30)),
            ("MiB", size(20)),
            ("KiB", size(10)),
            ("B", 1.0),
        ];
        Self::new(what, most.0 as f64, room, units)
    }

    /// Seconds up to `room` times `most`.
    pub fn of_seconds(what: &str, most: Seconds, room: f64) -> Self {
        let units = [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)];
        Self::new(what, most.0, room, units)
    }

    /// The unit is the largest that goes into `most` twice or more.
    fn new<const N: usize>(what: &str, most: f64, room: f64, units: [(&str, f64); N]) -> Self {
        let fitting = units.into_iter().find(|(_, size)| most >= 2.0 * size);
        let (name, unit) = fitting.unwrap_or(units[N - 1]);
        Self {
            end: if most > 0.0 { room * most } else { unit },
            unit,
            title: format!("{what} ({name})"),
        }
    }

    /// Where a value stands, as a share of the axis.
    pub fn share(&self, value: f64) -> f64 {
        value / self.end
    }

    /// The tick at zero and at most so many more, at round numbers: each as a share of the axis, with its label.
    pub fn ticks(&self, most: u32) -> Vec<(f64, String)> {
        let end = self.end / self.unit;
        let least = end / f64::from(most);
        let power = 10_f64.powf(least.log10().floor());
        let mut steps = [1.0, 2.0, 5.0, 10.0_f64]
            .map(|factor| factor * power)
            .into_iter();
        let step = steps.find(|step| *step >= least).unwrap_or(least);
        let tick = |number: u32| {
            let value = f64::from(number) * step;
            (value / end, label(value))
        };
        (0..=most)
            .map(tick)
            .filter(|(share, _)| *share <= 1.0)
            .collect()
    }
}

/// A tick's label, without trailing zeros.
fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_of_a_handy_unit() {
        let labels = |axis: Axis| {
            let labels: Vec<_> = axis.ticks(8).into_iter().map(|(_, label)| label).collect();
            (axis.title, labels.join(" "))
        };
        let bytes = |most: u64| labels(Axis::of_bytes("peak", Bytes(most), 1.0));
        assert_eq!(
            bytes(40 << 20),
            ("peak (MiB)".into(), "0 5 10 15 20 25 30 35 40".into())
        );
        assert_eq!(
            bytes(1 << 30),
            ("peak (MiB)".into(), "0 200 400 600 800 1000".into())
        );
        assert_eq!(bytes(0).0, "peak (B)");
        let quarter = labels(Axis::of_seconds("step", Seconds(0.25), 1.15));
        assert_eq!(quarter, ("step (ms)".into(), "0 50 100 150 200 250".into()));
    }
}
