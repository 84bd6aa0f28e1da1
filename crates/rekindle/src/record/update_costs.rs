//! The costs of parameter updates.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::module::ParamId;
use rekindle_plan::{Bytes, OptimizerCost, Seconds};

use super::{recording::Recording, update::Update};
use crate::reduce::shards::Shards;

/// The costs of parameter updates.
#[derive(Clone, Default)]
pub(super) struct UpdateCosts {
    /// The cost per parameter, also of those that do not train yet: with a gradient in the parameter's memory layout, and with one whose first two
    /// dimensions are exchanged in memory.
    pub(super) each: Arc<HashMap<ParamId, [OptimizerCost; 2]>>,
    /// Whether the first update creates state in the storage of gradients, which may be larger than their numbers.
    pub(super) keeps_storage: bool,
    /// Bytes that burn's graph keeps of each updated parameter until the next backward pass.
    pub(super) node_bytes: Bytes,
    /// The assignment of parameters to ranks, if ranks divide the updates: updates of other ranks cost nothing here.
    pub(super) shards: Option<Shards>,
}

impl UpdateCosts {
    /// The cost of an update besides gradient and state; `turned` means that the gradient's dimensions are exchanged in
    /// memory.
    pub(super) fn of(&self, parameter: ParamId, turned: bool) -> OptimizerCost {
        let one = self.each.get(&parameter).filter(|_| self.is_own(parameter));
        let [as_it_lies, exchanged] = one.copied().unwrap_or_default();
        if turned { exchanged } else { as_it_lies }
    }

    fn is_own(&self, parameter: ParamId) -> bool {
        self.shards
            .as_ref()
            .is_none_or(|shards| shards.keeps(parameter))
    }

    /// The cost of all updates together; for updates in the backward pass, only their state.
    pub(super) fn together(&self, update: Update, recording: &Recording) -> OptimizerCost {
        let mut sum = OptimizerCost::default();
        for [one, _] in self.made(recording) {
            sum.state_bytes += one.state_bytes;
            sum.step_s += one.step_s;
        }
        match update {
            Update::After => sum.temp_bytes = self.after(recording),
            Update::InBackward => sum.step_s = Seconds::ZERO,
        }
        sum
    }

    /// The costs of the updates that are made here.
    fn made(&self, recording: &Recording) -> impl Iterator<Item = &[OptimizerCost; 2]> {
        let trained = recording.parameters.iter().filter(|one| one.trains);
        // Copies with one id have one update.
        let trained: HashSet<ParamId> = trained.map(|one| one.id).collect();
        let own = trained.into_iter().filter(|id| self.is_own(*id));
        own.filter_map(|id| self.each.get(&id))
    }

    /// The maximum temporary bytes of one update, besides gradient and state.
    pub(super) fn most_temporary(&self, recording: &Recording) -> Bytes {
        let temporary = self.made(recording).flatten().map(|cost| cost.temp_bytes);
        temporary.max().unwrap_or_default()
    }

    /// Temporary bytes of updates after the step, besides gradients and state. Updates run one after another, and each
    /// frees its gradient and leaves nodes in burn's graph.
    fn after(&self, recording: &Recording) -> Bytes {
        let turned = recording.turned();
        let (mut freed, mut nodes, mut most) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        for parameter in &recording.parameters {
            // A rank that divides the updates with others makes only its own.
            let own = self.each.contains_key(&parameter.id) && self.is_own(parameter.id);
            let (Some(gradient), true) = (parameter.gradient, own) else {
                continue;
            };
            let cost = self.of(parameter.id, turned.contains(&parameter.tensor));
            most = most.max(nodes + cost.temp_bytes - freed);
            nodes += self.node_bytes;
            freed += Bytes(recording.tensors.value_bytes(gradient));
        }
        most
    }
}
