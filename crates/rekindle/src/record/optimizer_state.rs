//! How several ranks keep the optimizer's state: every rank all of it, or each rank its part. And what of it waits in host
//! memory between updates.

use std::collections::HashMap;

use burn::module::ParamId;
use rekindle_plan::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// Who keeps the optimizer's state, with the copy of half parameters, where several ranks train.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateChoice {
    /// `whole`; `sharded` where the budget of some rank is not met otherwise.
    #[default]
    Auto,
    /// Every rank all of it: no parameter is sent.
    Whole,
    /// Each rank that of its share of the parameters, whose updates it makes and sends to the others (ZeRO stage 1): of n
    /// ranks about one n-th. Parameters and their bits are the same.
    Sharded,
}

impl StateChoice {
    /// Whether plans of several ranks may have a sharded state; `auto` needs a budget that a whole one may not meet.
    #[must_use]
    pub fn may_shard(self, within_a_budget: bool) -> bool {
        match self {
            Self::Auto => within_a_budget,
            Self::Whole => false,
            Self::Sharded => true,
        }
    }
}

/// Who keeps the optimizer's state.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerState {
    /// Every rank all of it.
    #[default]
    Whole,
    /// Each rank that of its share of the parameters.
    Sharded,
}

/// The optimizer's state that is in host memory between updates: each parameter's comes to the device directly before its
/// update, and goes back after it.
#[derive(Default, PartialEq)]
pub(super) struct OnHost {
    /// What moving each parameter's adds to a step, there and back.
    pub(super) parameters: HashMap<ParamId, Seconds>,
    /// Of all of them together, as `seconds` are.
    pub(super) bytes: Bytes,
    pub(super) seconds: Seconds,
}

/// Who keeps the optimizer's state of several ranks, and what either way takes of this one.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatePlan {
    /// Who keeps it: the same on all ranks.
    pub chosen: OptimizerState,
    /// Why it is sharded though nobody asked for that; `null` otherwise.
    pub because: Option<ShardedBecause>,
    /// What a rank holds of a whole state.
    pub whole_bytes: Bytes,
    /// What this rank holds of a sharded one.
    pub sharded_bytes: Bytes,
    /// What sending updated parameters adds to each step where it is sharded.
    pub sharded_s: Seconds,
}

/// Why the state is sharded though nobody asked for that: no plan with a whole one meets the budget of a rank.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardedBecause {
    /// The first such rank.
    pub rank: usize,
    /// The smallest budget that it would do with.
    pub smallest_bytes: Bytes,
}
