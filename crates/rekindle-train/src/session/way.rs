//! Ways to plan that all ranks try together.

use rekindle::record::Update;
use rekindle_plan::Bytes;

use super::{Job, Planned};
use crate::{
    optimizer_state::{OptimizerState, StateChoice},
    update::Updates,
};

/// Plans that all ranks try together: with this state, and any of these updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) state: OptimizerState,
    pub(crate) updates: Updates,
}

impl Way {
    /// The first of a job, and others for where that does not meet every rank's budget. Ranks that share out the updates make
    /// them at the same time.
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

    /// Whether ranks share out the state, or would where a budget is not met otherwise.
    pub(crate) fn may_shard(job: &Job<'_>) -> bool {
        let stateless = || job.settings.state_bytes(1) == Bytes::ZERO;
        !job.ranks.is_alone()
            && match job.settings.optimizer_state {
                StateChoice::Whole => false,
                StateChoice::Auto => job.budget().is_some() && !stateless(),
                StateChoice::Sharded => true,
            }
    }

    /// The one that a job goes on in when it is planned again.
    pub(crate) fn again(planned: &Planned, job: &Job<'_>) -> Self {
        let state = planned.state.map(|state| state.chosen).unwrap_or_default();
        let updates = match state {
            OptimizerState::Whole => job.updates(),
            OptimizerState::Sharded => Updates::One(planned.update),
        };
        Self { state, updates }
    }
}
