//! How often a run takes snapshots.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Serialize, Serializer};

/// When a run with a folder takes snapshots. One more is always taken after the best evaluation so far, after the last
/// step, and when the run is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotEvery {
    /// After this many steps.
    Steps(usize),
    /// After the first step that ends at least this long after the previous snapshot.
    Time(Duration),
}

impl Default for SnapshotEvery {
    fn default() -> Self {
        Self::Time(Duration::from_secs(600))
    }
}

/// As it is typed: `500`, or a time in the largest unit of which it is a whole number.
impl fmt::Display for SnapshotEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = match self {
            Self::Steps(steps) => return write!(f, "{steps}"),
            Self::Time(time) => time.as_secs(),
        };
        let mut units = [("h", 3_600), ("min", 60)].into_iter();
        let whole = units.find(|(_, unit)| seconds % unit == 0);
        let (name, unit) = whole.unwrap_or(("s", 1));
        write!(f, "{}{name}", seconds / unit)
    }
}

impl Serialize for SnapshotEvery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for SnapshotEvery {
    type Err = String;

    /// Reads a time such as `90s`, `10min` or `2h`, or a number of steps.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        let number: Option<u64> = digits.parse().ok().filter(|&number| number > 0);
        let every = number.and_then(|number| {
            let seconds = match text[digits.len()..].trim_start() {
                "" => return usize::try_from(number).ok().map(Self::Steps),
                "s" => 1,
                "min" => 60,
                "h" => 3_600,
                _ => return None,
            };
            Some(Self::Time(Duration::from_secs(
                number.checked_mul(seconds)?,
            )))
        });
        every.ok_or_else(|| format!("{text:?} is not a time such as \"90s\", \"10min\" or \"2h\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_taken_after_steps_or_times() {
        let time = |seconds| Ok(SnapshotEvery::Time(Duration::from_secs(seconds)));
        assert_eq!("500".parse(), Ok(SnapshotEvery::Steps(500)));
        assert_eq!("90s".parse(), time(90));
        assert_eq!("10min".parse(), time(600));
        assert_eq!("2 h".parse(), time(7_200));
        for bad in [
            "",
            "0",
            "0min",
            "min",
            "-1s",
            "1.5h",
            "10m",
            "10 min 5s",
            "18446744073709551615h",
        ] {
            assert!(bad.parse::<SnapshotEvery>().is_err(), "{bad}");
        }
        assert_eq!(Ok(SnapshotEvery::default()), "10min".parse());
    }
}
