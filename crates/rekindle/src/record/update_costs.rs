//! What updates of parameters take.

use std::{collections::HashMap, sync::Arc};

use burn::module::ParamId;
use rekindle_plan::{Bytes, OptimizerCost, Seconds};

use super::{recording::Recording, update::Update};
use crate::reduce::Shards;

/// What the updates of parameters take.
#[derive(Clone, Default)]
pub(super) struct UpdateCosts {
    /// That of each: with a gradient that lies in memory as the parameter does, and with one whose first two dimensions
    /// are exchanged there.
    pub(super) each: Arc<HashMap<ParamId, [OptimizerCost; 2]>>,
    /// Whether the first update leaves state in the storage of gradients, which may be larger than their numbers.
    pub(super) keeps_storage: bool,
    /// Whose updates are whose, where ranks share them out: those of the others take nothing here.
    pub(super) shards: Option<Shards>,
}

impl UpdateCosts {
    /// What an update takes besides gradient and state; `turned` says that its gradient has dimensions exchanged in memory.
    pub(super) fn of(&self, parameter: ParamId, turned: bool) -> OptimizerCost {
        let one = self.each.get(&parameter).filter(|_| self.is_own(parameter));
        let [as_it_lies, exchanged] = one.copied().unwrap_or_default();
        match turned {
            true => exchanged,
            false => as_it_lies,
        }
    }

    fn is_own(&self, parameter: ParamId) -> bool {
        self.shards
            .as_ref()
            .is_none_or(|shards| shards.keeps(parameter))
    }

    /// What all updates take together; of those in the backward pass that is state alone.
    pub(super) fn together(&self, update: Update, recording: &Recording) -> OptimizerCost {
        let own = self.each.iter().filter(|(id, _)| self.is_own(**id));
        let mut sum = OptimizerCost::default();
        for (_, [one, _]) in own {
            sum.state_bytes += one.state_bytes;
            sum.step_s += one.step_s;
        }
        match update {
            Update::After => sum.temp_bytes = self.after(recording),
            Update::InBackward => sum.step_s = Seconds::ZERO,
        }
        sum
    }

    /// The most that one update takes besides gradient and state.
    pub(super) fn most_temporary(&self) -> Bytes {
        let temporary = self.each.values().flatten().map(|cost| cost.temp_bytes);
        temporary.max().unwrap_or_default()
    }

    /// What updates after the step take besides gradients and state: one comes after the other, and frees its gradient.
    fn after(&self, recording: &Recording) -> Bytes {
        let turned = recording.turned();
        let (mut freed, mut most) = (Bytes::ZERO, Bytes::ZERO);
        for parameter in &recording.parameters {
            // Ranks that share out the updates make some of them.
            let own = self.each.contains_key(&parameter.id) && self.is_own(parameter.id);
            let (Some(gradient), true) = (parameter.gradient, own) else {
                continue;
            };
            let cost = self.of(parameter.id, turned.contains(&parameter.tensor));
            most = most.max(cost.temp_bytes - freed);
            freed += Bytes(recording.tensors.value_bytes(gradient));
        }
        most
    }
}

/// What updates take, of a step that can be planned either way.
#[derive(Clone)]
pub(super) struct EitherUpdate {
    pub(super) after: UpdateCosts,
    pub(super) in_backward: UpdateCosts,
}

impl EitherUpdate {
    pub(super) fn of(&self, update: Update) -> &UpdateCosts {
        match update {
            Update::After => &self.after,
            Update::InBackward => &self.in_backward,
        }
    }
}
