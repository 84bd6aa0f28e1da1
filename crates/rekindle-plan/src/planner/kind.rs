//! The planners' names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The planners by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PlannerKind {
    /// Keep everything.
    None,
    /// Segments of equal length.
    Uniform,
    /// About sqrt(n) segments, cut by bytes.
    Sqrt,
    /// The best single-level cut.
    Segments,
    /// Binomial schedules for equal stages.
    Revolve,
    /// The best persistent schedule.
    Optimal,
    /// `none` if it fits, else `optimal`.
    #[default]
    Auto,
}

impl PlannerKind {
    /// All planners.
    pub const ALL: [PlannerKind; 7] = [
        PlannerKind::None,
        PlannerKind::Uniform,
        PlannerKind::Sqrt,
        PlannerKind::Segments,
        PlannerKind::Revolve,
        PlannerKind::Optimal,
        PlannerKind::Auto,
    ];

    /// The name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            PlannerKind::None => "none",
            PlannerKind::Uniform => "uniform",
            PlannerKind::Sqrt => "sqrt",
            PlannerKind::Segments => "segments",
            PlannerKind::Revolve => "revolve",
            PlannerKind::Optimal => "optimal",
            PlannerKind::Auto => "auto",
        }
    }
}

impl fmt::Display for PlannerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown planner name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown planner `{name}`: expected none, uniform, sqrt, segments, revolve, optimal or auto"
)]
pub struct PlannerParseError {
    /// The name as it was given.
    pub name: String,
}

impl FromStr for PlannerKind {
    type Err = PlannerParseError;

    fn from_str(name: &str) -> Result<PlannerKind, PlannerParseError> {
        let found = PlannerKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name);
        found.ok_or_else(|| PlannerParseError {
            name: name.to_owned(),
        })
    }
}
