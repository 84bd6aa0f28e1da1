//! Computes the costs of a schedule on a chain, action by action, in exact bytes.
//!
//! The peak of an action is the bytes held before it, plus its outputs, plus its temporary bytes; memory that it frees
//! is freed after it. The chain's fixed bytes, the optimizer's state and a_0 are held at every moment. `loss` has two
//! halves: its forward holds only its own temporary bytes, its backward pass y_L and its own temporary bytes. At
//! `optimize`, a_0 (and y_0, if the chain has `input_grad`) is still held; all other activations are freed.

use serde::{Deserialize, Serialize};

use crate::action::{Action, StageId};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::schedule::{Keeps, Schedule};
use crate::seconds::Seconds;

/// The costs of a schedule on a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// The most bytes held at any moment, everything included.
    pub peak: Bytes,
    /// The index of the first action that reaches the peak.
    pub peak_action: usize,
    /// The peak by parts.
    pub at_peak: Parts,
    /// The time of all actions, one after another. It is summed by stage, so that schedules that differ only in
    /// recomputing stages that take no time are equally fast, bit for bit.
    pub time: Seconds,
    /// How often each stage runs forward, tracked or not.
    pub forward_counts: Vec<usize>,
}

/// What the bytes of a moment are. serde names each part with its unit, as in `fixed_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parts {
    /// The chain's fixed bytes and the optimizer's state.
    #[serde(rename = "fixed_bytes")]
    pub fixed: Bytes,
    /// The input a_0.
    #[serde(rename = "input_bytes")]
    pub input: Bytes,
    /// Stand-alone activations: boundaries, and the running one.
    #[serde(rename = "activations_bytes")]
    pub activations: Bytes,
    /// Recorded graphs.
    #[serde(rename = "graphs_bytes")]
    pub graphs: Bytes,
    /// Gradients of activations.
    #[serde(rename = "gradients_bytes")]
    pub gradients: Bytes,
    /// Gradients of parameters.
    #[serde(rename = "parameter_gradients_bytes")]
    pub parameter_gradients: Bytes,
    /// Temporary bytes of the action itself.
    #[serde(rename = "temporary_bytes")]
    pub temporary: Bytes,
}

impl Parts {
    /// The sum of all parts.
    pub fn total(&self) -> Bytes {
        self.fixed
            + self.input
            + self.activations
            + self.graphs
            + self.gradients
            + self.parameter_gradients
            + self.temporary
    }
}

/// Runs a schedule on a chain. Costs O(actions + stages).
///
/// # Panics
/// The chain has fewer stages.
pub fn simulate(chain: &Chain, schedule: &Schedule) -> Simulation {
    let stages = chain.stages.len();
    // Whether a_i is held outside of any graph.
    let mut alone = vec![false; stages + 1];
    let mut held = Parts {
        fixed: chain.fixed_bytes + chain.optimizer.state_bytes,
        input: chain.input_bytes,
        ..Parts::default()
    };
    let mut run = Simulation {
        peak: Bytes::ZERO,
        peak_action: 0,
        at_peak: held,
        time: Seconds::ZERO,
        forward_counts: schedule.forward_counts(),
    };
    let actions = schedule.actions().iter().zip(schedule.keeps());
    for (index, (&action, keeps)) in actions.enumerate() {
        let mut during = held;
        // The i of a_i, if it is freed after the action.
        let mut frees = None;
        match action {
            Action::Forward(StageId(i)) => {
                let stage = &chain.stages[i];
                if keeps == Some(Keeps::Graph) {
                    during.graphs += stage.saved_bytes;
                    held = during;
                    during.temporary = stage.tracked_temp_bytes;
                } else {
                    during.activations += stage.output_bytes;
                    held = during;
                    during.temporary = stage.forward_temp_bytes;
                    alone[i + 1] = true;
                    frees = (keeps == Some(Keeps::Output)).then_some(i);
                }
            }
            Action::Loss => {
                let mut forward = during;
                forward.temporary = chain.loss.forward_temp_bytes;
                during.gradients += chain.activation_bytes(stages);
                held = during;
                during.temporary = chain.loss.backward_temp_bytes;
                if forward.total() > during.total() {
                    during = forward;
                }
                run.time += chain.loss.forward_s + chain.loss.backward_s;
                frees = Some(stages);
            }
            Action::Backward(StageId(i)) => {
                let stage = &chain.stages[i];
                during.gradients += chain.gradient_bytes(i);
                during.parameter_gradients += stage.grad_bytes;
                held = during;
                during.temporary = stage.backward_temp_bytes;
                held.gradients -= chain.gradient_bytes(i + 1);
                held.graphs -= stage.saved_bytes;
                frees = Some(i);
            }
            Action::Optimize => {
                during.temporary = chain.optimizer.temp_bytes;
                held.parameter_gradients = Bytes::ZERO;
                run.time += chain.optimizer.step_s;
            }
        }
        // a_0 is never alone: it is always held.
        if let Some(i) = frees.filter(|&i| std::mem::replace(&mut alone[i], false)) {
            held.activations -= chain.activation_bytes(i);
        }
        let peak = during.total();
        if peak > run.peak {
            run.peak = peak;
            run.peak_action = index;
            run.at_peak = during;
        }
    }
    for (stage, forwards) in chain.stages.iter().zip(&run.forward_counts) {
        // One of them is tracked.
        let recomputed = (forwards - 1) as f64;
        run.time += stage.forward_s + stage.backward_s + stage.forward_s * recomputed;
    }
    run
}
