//! Random chains for tests.

use proptest::prelude::*;
use rekindle_plan::{Alternative, Bytes, Chain, LossCost, OptimizerCost, Seconds, Stage};

/// What a random chain may have.
#[derive(Clone, Copy)]
pub struct Shape {
    pub stages: usize,
    /// The largest size is about this times ten.
    pub unit: u64,
    pub grads: bool,
    pub alternatives: bool,
    /// F may differ from f.
    pub tracked_temps: bool,
}

pub fn random_chain(shape: Shape) -> impl Strategy<Value = Chain> {
    let size = move |most: u64| 0..=most * shape.unit;
    let way = (1_u64..12, 1_u64..24, size(8), size(6), size(6));
    let stage = (
        1..=6 * shape.unit,
        way.clone(),
        size(6),
        size(4),
        proptest::collection::vec(way, 0..=2),
    );
    let stage = stage.prop_map(move |(output, way, forward_temp, grad, alternatives)| {
        let (forward, backward, more, tracked_temp, backward_temp) = way;
        Stage {
            name: "s".into(),
            forward_s: Seconds(forward as f64),
            backward_s: Seconds(backward as f64),
            output_bytes: Bytes(output),
            saved_bytes: Bytes(output + more),
            forward_temp_bytes: Bytes(forward_temp),
            tracked_temp_bytes: Bytes(if shape.tracked_temps {
                tracked_temp
            } else {
                forward_temp
            }),
            backward_temp_bytes: Bytes(backward_temp),
            param_bytes: Bytes(0),
            grad_bytes: Bytes(if shape.grads { grad } else { 0 }),
            alternatives: alternatives
                .into_iter()
                .filter(|_| shape.alternatives)
                .map(
                    |(forward, backward, more, tracked_temp, backward_temp)| Alternative {
                        name: "a".into(),
                        forward_s: Seconds(forward as f64),
                        backward_s: Seconds(backward as f64),
                        saved_bytes: Bytes(output + more),
                        tracked_temp_bytes: Bytes(if shape.tracked_temps {
                            tracked_temp
                        } else {
                            forward_temp
                        }),
                        backward_temp_bytes: Bytes(backward_temp),
                    },
                )
                .collect(),
        }
    });
    let loss = (0_u64..3, 0_u64..3, size(4), size(4));
    let rest = (size(6), any::<bool>(), size(3), 0_u64..3, size(3), size(3));
    (
        proptest::collection::vec(stage, 1..=shape.stages),
        loss,
        rest,
    )
        .prop_map(|(stages, loss, rest)| Chain {
            input_bytes: Bytes(rest.0),
            input_grad: rest.1,
            fixed_bytes: Bytes(rest.2),
            stages,
            loss: LossCost {
                forward_s: Seconds(loss.0 as f64),
                backward_s: Seconds(loss.1 as f64),
                forward_temp_bytes: Bytes(loss.2),
                backward_temp_bytes: Bytes(loss.3),
            },
            optimizer: OptimizerCost {
                step_s: Seconds(rest.3 as f64),
                temp_bytes: Bytes(rest.4),
                state_bytes: Bytes(rest.5),
            },
        })
}

/// A deep linear network as a profile of it would be: a wider first stage, a narrow last one, and `stages - 2` nearly
/// equal ones between, whose times differ by some percent and whose sizes by some hundred bytes.
#[allow(dead_code, reason = "not every test file uses it")]
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

/// The number of cases of a property: few by default, so that the suite stays short; `PROPTEST_CASES` asks for more.
pub fn cases(default: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(asked.unwrap_or(default))
    }
}
