//! A chain that is large and nearly regular.

use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, Seconds, Stage};

/// A deep linear network as a profile of it would be: a wider first stage, a narrow last one, and `stages - 2` nearly
/// equal ones between, whose times differ by some percent and whose sizes by some hundred bytes.
pub fn deep_linear(stages: usize) -> Chain {
    const WIDE: u64 = 1 << 20;
    let mut state = 11_u64;
    let mut below = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut stage = |slower: f64, output: u64| {
        let mut seconds =
            |about: f64| Seconds(slower * about * (9_700 + below(600)) as f64 / 10_000.0);
        let (forward_s, backward_s) = (seconds(6e-4), seconds(1.2e-3));
        let output = output + below(600);
        Stage {
            name: "linear".into(),
            forward_s,
            backward_s,
            output_bytes: Bytes(output),
            saved_bytes: Bytes(2 * output + below(600)),
            forward_temp_bytes: Bytes(output + below(300)),
            tracked_temp_bytes: Bytes(output / 4 + below(300)),
            backward_temp_bytes: Bytes(2 * output + below(300)),
            grad_bytes: Bytes(WIDE / 8),
            ..Stage::default()
        }
    };
    let mut all = vec![stage(1.3, WIDE)];
    all.extend((2..stages).map(|_| stage(1.0, WIDE)));
    all.push(stage(0.2, WIDE / 64));
    Chain {
        input_bytes: Bytes(WIDE + WIDE / 2),
        input_grad: false,
        fixed_bytes: Bytes(70_000_000),
        stages: all,
        loss: LossCost {
            forward_s: Seconds(1e-5),
            backward_s: Seconds(1e-5),
            forward_temp_bytes: Bytes(40_000),
            backward_temp_bytes: Bytes(80_000),
        },
        optimizer: OptimizerCost {
            step_s: Seconds(1e-3),
            ..OptimizerCost::default()
        },
    }
}
