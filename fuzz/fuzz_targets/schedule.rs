//! Lists of actions, as plan files hold them: what is accepted can be simulated.
#![no_main]

use rekindle_plan::{Action, Bytes, Chain, LossCost, OptimizerCost, Schedule, Stage, simulate};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let actions: Vec<Action> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let stages = actions
        .iter()
        .filter_map(|action| action.stage())
        .map(|stage| stage.0 + 1);
    let stages = stages.max().unwrap_or(1).min(64);
    if let Ok(schedule) = Schedule::new(stages, actions) {
        let chain = Chain {
            input_bytes: Bytes(1),
            input_grad: false,
            fixed_bytes: Bytes(0),
            stages: vec![Stage::default(); stages],
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        };
        let _ = simulate(&chain, &schedule);
    }
});
