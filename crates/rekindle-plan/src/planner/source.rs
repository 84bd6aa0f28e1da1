//! The method that found a plan.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// Where a plan came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanSource {
    /// Nothing is recomputed: no schedule is faster.
    Fastest,
    /// So many equal segments.
    Uniform {
        /// The number of segments.
        segments: usize,
    },
    /// The best single-level cut, in exact bytes.
    SingleLevel,
    /// The persistent program, in exact bytes, with one plan of each window of stages kept per slot.
    Slots(Slots),
    /// The persistent schedule of the smallest peak, in exact bytes.
    SmallestPeak,
}

/// How finely the program told memory apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// How many slots the plan's memory reaches into.
    pub count: usize,
    /// The bytes of one.
    pub bytes: Bytes,
    /// Whether every size is a whole number of slots: then the plan is the optimum. Otherwise, of the plans of a window
    /// of stages that need memory up to the same slot, only the fastest was kept.
    pub exact: bool,
}

impl fmt::Display for PlanSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanSource::Fastest => f.write_str("nothing recomputed"),
            PlanSource::Uniform { segments: 1 } => f.write_str("1 segment"),
            PlanSource::Uniform { segments } => write!(f, "{segments} equal segments"),
            PlanSource::SingleLevel => f.write_str("best single-level cut, exact bytes"),
            PlanSource::Slots(Slots {
                count,
                bytes,
                exact,
            }) => {
                let kept = if *exact {
                    "exact"
                } else {
                    "one plan kept per slot"
                };
                write!(
                    f,
                    "persistent program, {count} slots of {} bytes, {kept}",
                    bytes.0
                )
            }
            PlanSource::SmallestPeak => f.write_str("smallest peak, exact bytes"),
        }
    }
}
