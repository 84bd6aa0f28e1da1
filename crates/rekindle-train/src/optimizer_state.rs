//! How several ranks keep the optimizer's state: every rank all of it, or each rank its part.

use rekindle_plan::{Bytes, Seconds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    session::{Job, Planned},
    update::Updates,
};
use rekindle::record::Update;

/// Who keeps the optimizer's state, with the copy of half parameters, where several ranks train.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// Who keeps the optimizer's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerState {
    /// Every rank all of it.
    #[default]
    Whole,
    /// Each rank that of its share of the parameters.
    Sharded,
}

/// Who keeps the optimizer's state of several ranks, and what either way takes of this one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShardedBecause {
    /// The first such rank.
    pub rank: usize,
    /// The smallest budget that it would do with.
    pub smallest_bytes: Bytes,
}

/// A combination of optimizer state and updates for which all ranks try to plan together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) state: OptimizerState,
    pub(crate) updates: Updates,
}

impl Way {
    /// The first combination of a job, and the alternatives if that does not fit every rank's budget. Ranks that divide
    /// the updates make them at the same time.
    pub(crate) fn all(job: &Job<'_>) -> (Self, Vec<Self>) {
        let updates = job.updates();
        let whole = Self {
            state: OptimizerState::Whole,
            updates,
        };
        if !Self::may_shard(job) {
            return (whole, Vec::new());
        }
        let one = |update| Self {
            state: OptimizerState::Sharded,
            updates: Updates::One(update),
        };
        let (first, others) = match updates {
            Updates::One(update) => (one(update), Vec::new()),
            Updates::ToFit | Updates::ToFitOrFaster => {
                (one(Update::After), vec![one(Update::InBackward)])
            }
        };
        match job.settings.optimizer_state {
            StateChoice::Auto => (whole, [vec![first], others].concat()),
            StateChoice::Whole | StateChoice::Sharded => (first, others),
        }
    }

    /// Whether ranks divide the state, or would do so if a budget cannot be met otherwise.
    pub(crate) fn may_shard(job: &Job<'_>) -> bool {
        let stateless = || job.settings.state_bytes(1) == Bytes::ZERO;
        !job.ranks.is_alone()
            && match job.settings.optimizer_state {
                StateChoice::Whole => false,
                StateChoice::Auto => job.budget().is_some() && !stateless(),
                StateChoice::Sharded => true,
            }
    }

    /// The combination that a job keeps when it is planned again.
    pub(crate) fn again(planned: &Planned, job: &Job<'_>) -> Self {
        let state = planned.state.map(|state| state.chosen).unwrap_or_default();
        let updates = match state {
            OptimizerState::Whole => job.updates(),
            OptimizerState::Sharded => Updates::One(planned.update),
        };
        Self { state, updates }
    }
}
