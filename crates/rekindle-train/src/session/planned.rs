//! A plan with all predictions before the first step.

use std::cmp::Reverse;

use rekindle_plan::{Action, Bytes, OptimizerCost, Parts, Seconds};

use crate::timeline::at_update;
use rekindle::record::{Offload, PlanSummary, StagedPlan, StepExchange};

/// A plan and its predictions before the first step.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The plan in numbers, of a whole step: all parts of its batch, and the update.
    pub summary: PlanSummary,
    /// The plan by stages, of one part of a batch.
    pub staged: StagedPlan,
    /// What the update takes.
    pub optimizer: OptimizerCost,
}

impl Planned {
    /// A plan of one of so many parts of a batch.
    pub(super) fn new(
        parts: usize,
        plan: PlanSummary,
        staged: StagedPlan,
        optimizer: OptimizerCost,
    ) -> Self {
        // Parts of a batch share their update, and what ranks send each other after it.
        let sent = plan.exchange.map(|one| one.taken.parameters_s);
        let sent = sent.unwrap_or_default();
        let whole_step =
            |seconds: Seconds| (seconds - sent) * parts as f64 + sent + optimizer.step_s;
        let of_parts = |bytes: Bytes| Bytes(bytes.0 * parts as u64);
        let summary = PlanSummary {
            predicted_time: whole_step(plan.predicted_time),
            plain_time: whole_step(plan.plain_time),
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
            summary,
            staged,
            optimizer,
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
        let update = (Action::Optimize, at_update(&self.staged, &self.optimizer));
        let passes = self.staged.passes().chain([update]).enumerate();
        let highest = passes.max_by_key(|(place, (_, parts))| (parts.total(), Reverse(*place)));
        highest.map_or(update, |(_, highest)| highest)
    }
}
