//! Random chains for tests.

use proptest::prelude::*;
use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, Seconds, Stage};

/// What a random chain may have.
#[derive(Clone, Copy)]
pub struct Shape {
    pub stages: usize,
    /// The largest size is about this times ten.
    pub unit: u64,
    pub grads: bool,
    /// F may differ from f.
    pub tracked_temps: bool,
}

pub fn random_chain(shape: Shape) -> impl Strategy<Value = Chain> {
    let size = move |most: u64| 0..=most * shape.unit;
    let recorded = (1_u64..12, 1_u64..24, size(8), size(6), size(6));
    let stage = (1..=6 * shape.unit, recorded, size(6), size(4));
    let stage = stage.prop_map(move |(output, recorded, forward_temp, grad)| {
        let (forward, backward, more, tracked_temp, backward_temp) = recorded;
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
