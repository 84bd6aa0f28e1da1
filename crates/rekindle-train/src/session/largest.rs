//! Maximum memory that one action of a step allocates.

use rekindle_plan::{Bytes, Stage};

use super::Planned;

/// The most that any stage of a recording takes. Its stages need not be those of the model.
pub(super) struct LargestNeeds {
    /// Of a forward.
    pub(super) forward: Bytes,
    /// Of an update of a stage's parameters, one after the other.
    pub(super) update: Bytes,
    /// The same for the first update, which allocates the optimizer's state.
    pub(super) first_update: Bytes,
    /// Of any action, and the optimizer's state.
    pub(super) any: Bytes,
}

impl Planned {
    /// The most memory that single actions of this plan take.
    pub(super) fn largest(&self) -> LargestNeeds {
        let (chain, optimizer) = (&self.staged.chain, &self.optimizer);
        let most = |needed: &dyn Fn(usize, &Stage) -> Bytes| {
            let stages = chain.stages.iter().enumerate();
            let needs = stages.map(|(place, stage)| needed(place, stage));
            needs.max().unwrap_or_default()
        };
        let forward = most(&|_, stage| stage.output_bytes + stage.forward_temp_bytes);
        let tracked = most(&|_, stage| stage.saved_bytes + stage.tracked_temp_bytes);
        let backward = most(&|place, stage| {
            chain.gradient_bytes(place) + stage.grad_bytes + stage.backward_temp_bytes
        });
        let loss = chain.gradient_bytes(chain.stages.len())
            + chain.loss.forward_temp_bytes
            + chain.loss.backward_temp_bytes;
        let largest_gradient = most(&|_, stage| stage.grad_bytes);
        let update = match largest_gradient {
            Bytes::ZERO => Bytes::ZERO,
            _ => optimizer.temp_bytes,
        };
        let share = largest_gradient.0 as f64 / chain.grad_bytes().0.max(1) as f64;
        let state = Bytes((optimizer.state_bytes.0 as f64 * share) as u64);
        let actions = [forward, tracked, backward, loss, optimizer.temp_bytes];
        LargestNeeds {
            forward,
            update,
            first_update: update + state,
            any: actions.into_iter().max().unwrap_or_default() + optimizer.state_bytes,
        }
    }
}
