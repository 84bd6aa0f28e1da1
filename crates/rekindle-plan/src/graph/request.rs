//! Requests to the planners for graphs.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::link::Link;
use crate::bytes::Bytes;

/// The planners of graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphPlanner {
    /// Every operation once, in recorded order.
    None,
    /// So many segments of equally many stages; without a number the fastest that fit.
    Uniform(Option<usize>),
    /// About sqrt(n) segments of stages, cut by bytes.
    Sqrt,
    /// The best single-level cut between stages, into so many segments where there is a number.
    Segments(Option<usize>),
    /// Binomial schedules over stages.
    Revolve,
    /// The best persistent schedule over stages.
    Optimal,
    /// Single operations, stages or not.
    Graph,
    /// `none` if it fits, else the faster of `optimal` and `graph`.
    #[default]
    Auto,
}

impl GraphPlanner {
    /// The name, in lower case, without the number of segments.
    pub fn name(self) -> &'static str {
        match self {
            GraphPlanner::None => "none",
            GraphPlanner::Uniform(_) => "uniform",
            GraphPlanner::Sqrt => "sqrt",
            GraphPlanner::Segments(_) => "segments",
            GraphPlanner::Revolve => "revolve",
            GraphPlanner::Optimal => "optimal",
            GraphPlanner::Graph => "graph",
            GraphPlanner::Auto => "auto",
        }
    }
}

impl fmt::Display for GraphPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphRequest {
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// Which planner.
    pub planner: GraphPlanner,
    /// The link to host memory, for the planners `graph` and `auto`; `None` where tensors stay on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

impl GraphRequest {
    /// The fastest program within a budget.
    pub fn within(budget: Bytes) -> GraphRequest {
        GraphRequest {
            budget: Some(budget),
            ..GraphRequest::default()
        }
    }
}

impl Default for GraphRequest {
    fn default() -> GraphRequest {
        GraphRequest {
            budget: None,
            planner: GraphPlanner::Auto,
            link: None,
        }
    }
}
