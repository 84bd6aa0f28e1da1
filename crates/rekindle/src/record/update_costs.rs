//! The costs of parameter updates.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::module::ParamId;
use rekindle_plan::{Bytes, OptimizerCost, Seconds, graph::Link};

use super::{optimizer_state::OnHost, recording::Recording, update::Update};
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
    /// Tensors in a parameter's state, if the optimizer [can keep it in host memory](super::Optimizer::movable_tensors);
    /// else 0.
    pub(super) tensors: usize,
    /// What of the state is there between updates.
    pub(super) on_host: Option<Arc<OnHost>>,
}

impl UpdateCosts {
    /// The cost of an update besides gradient and state; `turned` means that the gradient's dimensions are exchanged in
    /// memory. A state that comes from the host is temporary, and so is another dense copy of one of its tensors while it
    /// is read.
    pub(super) fn of(&self, parameter: ParamId, turned: bool) -> OptimizerCost {
        let one = self.each.get(&parameter).filter(|_| self.is_own(parameter));
        let [as_it_lies, exchanged] = one.copied().unwrap_or_default();
        let cost = if turned { exchanged } else { as_it_lies };
        if self.moves_s(parameter).is_none() {
            return cost;
        }
        let copy = Bytes(cost.state_bytes.0.div_ceil(self.tensors.max(1) as u64));
        OptimizerCost {
            state_bytes: Bytes::ZERO,
            temp_bytes: cost.state_bytes + cost.temp_bytes.max(copy),
            ..cost
        }
    }

    /// What moving a parameter's state adds to its update, if the state is on the host between updates.
    pub(super) fn moves_s(&self, parameter: ParamId) -> Option<Seconds> {
        self.on_host.as_ref()?.parameters.get(&parameter).copied()
    }

    /// The largest states, `bytes` in all or a little more, and no more than the link's host has room for: of all choices of so
    /// many bytes, the one with the fewest transfers. `None` if there are none.
    pub(super) fn on_host(
        &self,
        bytes: Bytes,
        link: &Link,
        recording: &Recording,
    ) -> Option<OnHost> {
        let made = self.made(recording);
        let own = recording.parameters.iter().map(|one| one.id);
        let own = own.filter(|id| made.contains(id));
        let mut states: Vec<_> = own.map(|id| (self.of(id, false).state_bytes, id)).collect();
        // Equal ones stay in the recording's order.
        states.sort_by_key(|(state, _)| Reverse(*state));
        let mut on_host = OnHost::default();
        for (state, id) in states {
            let fits = on_host.bytes < bytes && on_host.bytes + state <= link.host_bytes;
            if fits && state > Bytes::ZERO && !on_host.parameters.contains_key(&id) {
                // Each tensor by itself, there and back.
                let tensor = Bytes(state.0.div_ceil(self.tensors as u64));
                let both_ways = link.to_device.seconds(tensor) + link.to_host.seconds(tensor);
                let seconds = both_ways * self.tensors as f64;
                on_host.parameters.insert(id, seconds);
                on_host.bytes += state;
                on_host.seconds += seconds;
            }
        }
        Some(on_host).filter(|on_host| !on_host.parameters.is_empty())
    }

    fn is_own(&self, parameter: ParamId) -> bool {
        self.shards
            .as_ref()
            .is_none_or(|shards| shards.keeps(parameter))
    }

    /// The cost of all updates together; for updates in the backward pass, only their state.
    pub(super) fn together(&self, update: Update, recording: &Recording) -> OptimizerCost {
        let mut sum = OptimizerCost::default();
        for id in self.made(recording) {
            let one = self.of(id, false);
            sum.state_bytes += one.state_bytes;
            sum.step_s += one.step_s;
        }
        match update {
            Update::After => sum.temp_bytes = self.after(recording),
            Update::InBackward => sum.step_s = Seconds::ZERO,
        }
        sum
    }

    /// The parameters whose updates are made here.
    fn made(&self, recording: &Recording) -> HashSet<ParamId> {
        let trained = recording.parameters.iter().filter(|one| one.trains);
        // Copies with one id have one update.
        let own = trained.filter(|one| self.is_own(one.id));
        own.map(|one| one.id).collect()
    }

    /// The maximum temporary bytes of one update, besides gradient and state.
    pub(super) fn most_temporary(&self, recording: &Recording) -> Bytes {
        let made = self.made(recording).into_iter();
        let temporary =
            made.flat_map(|id| [false, true].map(|turned| self.of(id, turned).temp_bytes));
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
