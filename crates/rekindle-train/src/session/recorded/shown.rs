//! What is shown of a recorded step's plan.

use std::cmp::Reverse;

use rekindle_plan::{Action, Bytes, Chain, OptimizerCost, Parts, Planner, Seconds};

use super::super::{Order, Planned, measured_step::Terms, planned::numbers};
use crate::timeline::{Prediction, at_update};
use rekindle::record::{Offload, StagedPlan, StepExchange, StepPlan};

/// A plan with all that is shown of it.
pub(in super::super) fn planned(
    terms: &Terms,
    plan: StepPlan,
    staged: StagedPlan,
    optimizer: &OptimizerCost,
    planner: Option<String>,
) -> Planned {
    // Parts of a batch share their update, and what ranks send each other after it.
    let exchange = plan.exchange.map(|one| one.taken);
    let sent = exchange.unwrap_or_default().parameters_s;
    let whole_step =
        |seconds: Seconds| (seconds - sent) * terms.micro_batches as f64 + sent + optimizer.step_s;
    let (place, at_peak) = highest(&staged, optimizer);
    let mut actions = staged.actions();
    actions.push(Action::Optimize);
    let prediction = Prediction::new(&staged, optimizer);
    let order = Order {
        operations: staged.operations.clone(),
        offloaded: staged.offloaded.clone(),
        recording: staged.recording,
    };
    Planned {
        forwards: staged.forwards.clone(),
        segments: staged.segments.as_deref().map(numbers),
        actions,
        order: Some(order),
        at_peak: (place, at_peak),
        peak: plan.predicted_peak,
        peak_in_use: plan.predicted_peak - staged.beside_buffers,
        plain_peak: plan.plain_peak,
        plain_step: whole_step(plan.plain_time),
        step: whole_step(plan.predicted_time),
        count: terms.count,
        operations: Some((plan.repeated, plan.operations)),
        offload: plan.offload.map(|offload| {
            let parts = terms.micro_batches as u64;
            Offload {
                to_host_bytes: Bytes(offload.to_host_bytes.0 * parts),
                to_device_bytes: Bytes(offload.to_device_bytes.0 * parts),
                transfer_s: offload.transfer_s * parts as f64,
                ..offload
            }
        }),
        exchange: plan.exchange.map(|exchange| StepExchange {
            taken: exchange.taken.repeated(terms.micro_batches),
            ..exchange
        }),
        state: plan.state,
        update: staged.update,
        in_backward_because: plan.in_backward_because,
        planner: planner.unwrap_or_else(|| asked_as(plan.planner).to_string()),
        chain: staged.chain,
        budget: plan.budget,
        param_count: terms.param_count,
        prediction,
    }
}

/// The planner by the name that asks for it: single operations are planned by `auto`.
pub(in super::super) fn asked_as(planner: Planner) -> Planner {
    match planner {
        Planner::Graph => Planner::Auto,
        other => other,
    }
}

/// The chain with the names of the model's stages.
pub(in super::super) fn named(
    mut chain: Chain,
    marks: &[Option<usize>],
    names: &[String],
) -> Chain {
    for (stage, mark) in chain.stages.iter_mut().zip(marks) {
        if let Some(name) = mark.and_then(|mark| names.get(mark)) {
            stage.name.clone_from(name);
        }
    }
    chain
}

/// The place and the parts of the highest moment, the update included.
fn highest(staged: &StagedPlan, optimizer: &OptimizerCost) -> (usize, Parts) {
    let update = at_update(staged, optimizer);
    let moments = staged.passes().map(|(_, parts)| parts).chain([update]);
    let highest = moments.enumerate().max_by_key(|(place, parts)| {
        // The first of equals.
        (parts.total(), Reverse(*place))
    });
    highest.unwrap_or_default()
}
