//! What to plan for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::bytes::Bytes;
use crate::graph::Link;

/// The planners. [`Display`](fmt::Display) and serde write a planner's name, without the number of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "String", inline, description = "", extend("enum" = Planner::ALL))
)]
pub enum Planner {
    /// Everything once, in recorded order.
    None,
    /// So many segments, cut where the peak is smallest; without a number the fastest that fit, of equally many stages.
    Segments(#[serde(skip)] Option<usize>),
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
}

impl fmt::Display for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Planner {
    type Err = String;

    fn from_str(name: &str) -> Result<Planner, String> {
        let found = Planner::ALL.into_iter().find(|one| one.to_string() == name);
        found.ok_or_else(|| {
            let expected = "expected none, segments, optimal or auto";
            format!("unknown planner `{name}`: {expected}")
        })
    }
}

impl<'de> Deserialize<'de> for Planner {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Planner, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(de::Error::custom)
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
    /// How many times the usual work a search may do: about a second for up to 250 operations, a quarter for 1,000, a second for
    /// 10,000. At least 1.
    pub effort: u32,
}

impl Default for Request {
    /// `auto` without a limit.
    fn default() -> Request {
        Request::of(Planner::Auto, None)
    }
}

impl Request {
    /// A planner's fastest plan, within a budget if there is one.
    pub fn of(planner: Planner, budget: Option<Bytes>) -> Request {
        Request {
            budget,
            planner,
            link: None,
            effort: 1,
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
