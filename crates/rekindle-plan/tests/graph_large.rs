//! Large graphs.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod graph_support;

use graph_support::graphs::{Sequence, residual};
use rekindle_plan::Bytes;
use rekindle_plan::graph::{GraphRequest, Program, plan_graph, simulate};

#[test]
fn ten_thousand_operations() {
    let mut random = Sequence(3);
    let graph = residual(&mut random, 400, 8);
    graph.validate().unwrap();
    let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
    eprintln!(
        "{} operations, peak {} time {}",
        graph.operations.len(),
        recorded.peak.0,
        recorded.time.0
    );
    for percent in [80, 50, 30, 20, 10, 5] {
        let start = std::time::Instant::now();
        let budget = Bytes(recorded.peak.0 * percent / 100);
        match plan_graph(&graph, &GraphRequest::within(budget)) {
            Ok(plan) => eprintln!(
                "{percent}%: time x{:.4} repeated {} by {:?} in {:?}",
                plan.simulated.time.0 / recorded.time.0,
                plan.simulated.repeated,
                plan.planner,
                start.elapsed()
            ),
            Err(error) => eprintln!("{percent}%: {error} in {:?}", start.elapsed()),
        }
    }
}
