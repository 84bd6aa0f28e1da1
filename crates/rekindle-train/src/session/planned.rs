//! A plan with all predictions before the first step.

use std::cmp::Reverse;

use rekindle_plan::{Action, Bytes, OptimizerCost, Parts, Seconds, Stage};

use crate::timeline::at_update;
use rekindle::record::{Offload, PlanSummary, StepExchange, driver::StagedPlan};

/// Number of stages that [`holders`] lists.
const NAMED: usize = 5;

/// A plan and its predictions before the first step.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Equal parts that a batch runs in, one after the other.
    pub parts: usize,
    /// The plan in numbers, of a whole step: all parts of its batch, and the update.
    pub summary: PlanSummary,
    /// The plan by stages, of one part of a batch, with what the update takes.
    pub staged: StagedPlan,
}

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
    /// A plan of one of so many parts of a batch.
    pub(super) fn new(
        parts: usize,
        plan: PlanSummary,
        mut staged: StagedPlan,
        optimizer: OptimizerCost,
    ) -> Self {
        staged.chain.optimizer = optimizer;
        // Parts of a batch share their update, with moves of state, and what ranks send each other after it.
        let sent = plan.exchange.map(|one| one.taken.parameters_s);
        let sent = sent.unwrap_or_default();
        let whole_step = |seconds: Seconds, once: Seconds| {
            (seconds - once) * parts as f64 + once + optimizer.step_s
        };
        let moved = plan
            .offload
            .map_or(Seconds::ZERO, |offload| offload.state_s);
        let of_parts = |bytes: Bytes| Bytes(bytes.0 * parts as u64);
        let summary = PlanSummary {
            predicted_time: whole_step(plan.predicted_time, sent + moved),
            plain_time: whole_step(plan.plain_time, sent),
            offload: plan.offload.map(|offload| Offload {
                to_host_bytes: of_parts(offload.to_host_bytes),
                to_device_bytes: of_parts(offload.to_device_bytes),
                transfer_s: offload.transfer_s * parts as f64,
                ..offload
            }),
            exchange: plan.exchange.map(|exchange| StepExchange {
                taken: exchange.taken.repeated(parts),
                ..exchange
            }),
            ..plan
        };
        Self {
            parts,
            summary,
            staged,
        }
    }

    /// The step as actions on stages. In a plan of single operations, a repeated `forward` recomputes some of the stage's
    /// operations.
    #[must_use]
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = self.staged.actions();
        actions.push(Action::Optimize);
        actions
    }

    /// The first action of the predicted peak, and the bytes that are held then.
    #[must_use]
    pub fn at_peak(&self) -> (Action, Parts) {
        let update = (Action::Optimize, at_update(&self.staged));
        let passes = self.staged.passes().chain([update]).enumerate();
        let highest = passes.max_by_key(|(place, (_, parts))| (parts.total(), Reverse(*place)));
        highest.map_or(update, |(_, highest)| highest)
    }

    /// The most memory that single actions of this plan take.
    pub(super) fn largest(&self) -> LargestNeeds {
        let chain = &self.staged.chain;
        let optimizer = &chain.optimizer;
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

/// The stages of a plan with the most memory, largest first: parameters, gradients, and bytes that a tracked forward
/// keeps.
#[must_use]
pub fn holders(planned: &Planned) -> Vec<(String, Bytes)> {
    let stages = planned.staged.chain.stages.iter();
    let held = stages.map(|stage| {
        let bytes = stage.param_bytes + stage.grad_bytes + stage.saved_bytes;
        (stage.name.clone(), bytes)
    });
    let mut held: Vec<_> = held.collect();
    held.sort_by_key(|(_, bytes)| Reverse(*bytes));
    held.truncate(NAMED);
    held
}
