//! How long plans take, each the median of eleven: `optimal` on chains of different and of repeating stages at half of the
//! plain peak and 500 slots, and graphs of residual layers and of a transformer at half of the recorded peak.
//!
//! `cargo bench -p rekindle-plan [-- --large]`. Chains of 1,000 stages and a graph of 100,000 operations take minutes and are left
//! out unless asked for.
#![expect(
    clippy::unwrap_used,
    reason = "a bench that cannot plan has nothing to measure"
)]

use std::hint::black_box;
use std::time::Instant;

use graph_support::graphs::{Sequence, residual, transformer};
use rekindle_plan::graph::{Program, plan_graph, simulate};
use rekindle_plan::{
    Bytes, Chain, LossCost, OptimizerCost, Planner, Request, Seconds, Stage, plan_chain,
};

#[path = "../tests/graph_support/mod.rs"]
mod graph_support;

/// Runs once to warm up and eleven times for the median.
fn time<T>(name: &str, run: impl Fn() -> T) {
    black_box(run());
    let mut seconds: Vec<f64> = Vec::new();
    for _ in 0..11 {
        let started = Instant::now();
        black_box(run());
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    println!("{name:<40} {:>10.2} ms", seconds[5] * 1e3);
}

/// `stages` stages, of which `kinds` differ; the others repeat them in turn.
fn chain(stages: usize, kinds: usize) -> Chain {
    let mut random = Sequence(7);
    let kinds: Vec<Stage> = (0..kinds)
        .map(|_| {
            let output = 1_000_000 + random.below(4_000_000);
            let temp = random.below(2_000_000);
            Stage {
                forward_s: Seconds(1e-3 + random.below(1000) as f64 * 1e-5),
                backward_s: Seconds(2e-3 + random.below(1000) as f64 * 2e-5),
                output_bytes: Bytes(output),
                saved_bytes: Bytes(output + random.below(8_000_000)),
                forward_temp_bytes: Bytes(temp),
                tracked_temp_bytes: Bytes(temp),
                backward_temp_bytes: Bytes(random.below(3_000_000)),
                grad_bytes: Bytes(random.below(200_000)),
                ..Stage::default()
            }
        })
        .collect();
    Chain {
        input_bytes: Bytes(3_000_000),
        input_grad: false,
        fixed_bytes: Bytes(100_000_000),
        stages: kinds.iter().cycle().take(stages).cloned().collect(),
        loss: LossCost::default(),
        optimizer: OptimizerCost::default(),
    }
}

fn half_of_plain(chain: &Chain) -> Bytes {
    let plain = Request::of(Planner::None, None);
    let peak = plan_chain(chain, &plain).unwrap().simulated.peak;
    let resident = chain.resident_bytes();
    resident + Bytes((peak - resident).0 / 2)
}

fn main() {
    let large = std::env::args().any(|argument| argument == "--large");
    let mut sizes = vec![(30, 30), (100, 100), (300, 300), (300, 12)];
    let residual = |layers| residual(&mut Sequence(3), layers, 8);
    let mut graphs = vec![residual(4), residual(40), residual(400), transformer(48).0];
    if large {
        sizes.extend([(1000, 12), (1000, 1000)]);
        graphs.push(transformer(2640).0);
    }
    for (stages, kinds) in sizes {
        let chain = chain(stages, kinds);
        let request = Request::of(Planner::Optimal, Some(half_of_plain(&chain)));
        let name = format!("chain of {stages}, {kinds} kinds: optimal");
        time(&name, || plan_chain(&chain, &request).unwrap());
    }
    for graph in graphs {
        let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
        for planner in [Planner::Optimal, Planner::Auto] {
            let request = Request::of(planner, Some(Bytes(recorded.peak.0 / 2)));
            let name = format!("graph of {}: {planner:?}", graph.operations.len());
            time(&name, || plan_graph(&graph, &request).unwrap());
        }
    }
}
