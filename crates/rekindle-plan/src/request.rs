//! What to plan for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::bytes::Bytes;
use crate::graph::Link;

/// The planners. serde writes a planner's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Planner {
    /// Everything once, in recorded order.
    None,
    /// So many segments, cut where the peak is smallest; without a number the fastest that fit, of equally many stages.
    Segments(Option<usize>),
    /// The best persistent schedule over stages.
    Optimal,
    /// `none` if it fits, else a search over single operations. A chain has only stages: there it is `optimal`.
    #[default]
    Auto,
}

impl Planner {
    /// The planners that are asked for by name.
    pub const ALL: [Planner; 4] = [
        Planner::None,
        Planner::Segments(None),
        Planner::Optimal,
        Planner::Auto,
    ];

    /// The planner that is asked for by name, by a number of segments, or by both; [`Planner::Auto`] by neither.
    ///
    /// # Errors
    /// The named planner takes no number of segments.
    pub fn asked(named: Option<Planner>, segments: Option<usize>) -> Result<Planner, String> {
        match (named, segments) {
            (named, None) => Ok(named.unwrap_or_default()),
            (None | Some(Planner::Segments(_)), segments) => Ok(Planner::Segments(segments)),
            (Some(planner), Some(_)) => Err(format!(
                "the {planner} planner takes no number of segments: leave one of them out"
            )),
        }
    }

    /// The name, in lower case, without the number of segments.
    fn name(self) -> &'static str {
        match self {
            Planner::None => "none",
            Planner::Segments(_) => "segments",
            Planner::Optimal => "optimal",
            Planner::Auto => "auto",
        }
    }
}

impl fmt::Display for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Planner {
    type Err = String;

    fn from_str(name: &str) -> Result<Planner, String> {
        let found = Planner::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| {
            let expected = "expected none, segments, optimal or auto";
            format!("unknown planner `{name}`: {expected}")
        })
    }
}

impl Serialize for Planner {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Planner {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Planner, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Planner {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Planner".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": Planner::ALL.map(Planner::name) })
    }
}

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// Which planner.
    pub planner: Planner,
    /// The link to host memory, for the planner `auto`; `None` where tensors stay on the device.
    pub link: Option<Link>,
    /// How many times the usual work a search may do: about a quarter of a second for 100 operations and more, a second for 10,000.
    /// At least 1.
    pub effort: u32,
}

impl Default for Request {
    /// `auto` without a limit.
    fn default() -> Request {
        Request {
            budget: None,
            planner: Planner::Auto,
            link: None,
            effort: 1,
        }
    }
}

impl Request {
    /// A planner's fastest plan, within a budget if there is one.
    pub fn of(planner: Planner, budget: Option<Bytes>) -> Request {
        Request {
            budget,
            planner,
            ..Request::default()
        }
    }

    /// The fastest plan within a budget.
    pub fn within(budget: Bytes) -> Request {
        Request::of(Planner::Auto, Some(budget))
    }

    /// The budget, or without one more than any plan takes.
    pub(crate) fn most_bytes(&self) -> Bytes {
        self.budget.unwrap_or(Bytes::MAX)
    }
}
