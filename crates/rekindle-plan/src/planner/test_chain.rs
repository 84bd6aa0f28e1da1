//! A chain of random costs for tests, and what its schedules take.

use crate::action::Action;
use crate::bytes::Bytes;
use crate::chain::{Chain, LossCost, OptimizerCost, Stage};
use crate::graph::{Simulated, Stages, simulate};
use crate::seconds::Seconds;

/// What a schedule takes on the graph of its chain.
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
pub(crate) fn simulated(chain: &Chain, schedule: &[Action]) -> Simulated {
    let (graph, stages) = Stages::of_chain(chain);
    simulate(&graph, &stages.program(&graph, schedule).unwrap())
}

/// `stages` stages of `kinds` kinds that repeat, with times of whole seconds and sizes of up to about 20 units.
pub(crate) fn chain(stages: usize, kinds: usize, unit: u64) -> Chain {
    let mut state = 3_u64;
    let mut below = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound
    };
    let kinds: Vec<Stage> = (0..kinds)
        .map(|_| Stage {
            forward_s: Seconds(below(9) as f64),
            backward_s: Seconds(below(9) as f64),
            output_bytes: Bytes(1 + below(9 * unit)),
            saved_bytes: Bytes(10 * unit + below(9 * unit)),
            forward_temp_bytes: Bytes(below(5 * unit)),
            tracked_temp_bytes: Bytes(below(9 * unit)),
            backward_temp_bytes: Bytes(below(9 * unit)),
            grad_bytes: Bytes(below(3 * unit)),
            ..Stage::default()
        })
        .collect();
    Chain {
        input_bytes: Bytes(4),
        input_grad: true,
        fixed_bytes: Bytes::ZERO,
        stages: kinds.into_iter().cycle().take(stages).collect(),
        loss: LossCost::default(),
        optimizer: OptimizerCost::default(),
    }
}
