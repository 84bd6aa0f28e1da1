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

/// As it may be typed.
impl fmt::Display for SnapshotEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => steps.fmt(f),
            Self::Time(time) => humantime::format_duration(*time).fmt(f),
        }
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
        let every = match text.parse::<usize>() {
            Ok(steps) => (steps > 0).then_some(Self::Steps(steps)),
            Err(_) => {
                let time = humantime::parse_duration(text).ok();
                time.filter(|time| !time.is_zero()).map(Self::Time)
            }
        };
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
        assert_eq!("10min 5s".parse(), time(605));
        for bad in [
            "",
            "0",
            "0min",
            "min",
            "-1s",
            "10 steps",
            "18446744073709551615h",
        ] {
            assert!(bad.parse::<SnapshotEvery>().is_err(), "{bad}");
        }
        for every in [SnapshotEvery::Steps(500), SnapshotEvery::default()] {
            assert_eq!(every.to_string().parse(), Ok(every));
        }
        assert_eq!(Ok(SnapshotEvery::default()), "10min".parse());
    }
}
