//! Large graphs.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod graph_support;

use graph_support::graphs::{Sequence, residual};
use rekindle_plan::Bytes;
use rekindle_plan::graph::{GraphRequest, Program, plan_graph, simulate};

#[test]
fn look() {
    let mut random = Sequence(3);
    table(&graph_support::graphs::unet(4, false));
    table(&graph_support::graphs::unet(4, true));
    for (layers, inside) in [(6, 6), (30, 8), (100, 8)] {
        let graph = residual(&mut random, layers, inside);
        table(&graph);
    }
}

fn table(graph: &rekindle_plan::Graph) {
    use rekindle_plan::GraphPlanner::*;
    graph.validate().unwrap();
    let start = std::time::Instant::now();
    let (_, least) = rekindle_plan::graph::smallest_program(graph).unwrap();
    eprintln!(
        "smallest {} x{:.3} {:?}",
        least.peak.0,
        least.time.0,
        start.elapsed()
    );
    let recorded = simulate(graph, &Program::recorded(graph).unwrap());
    eprintln!(
        "{} operations, peak {} time {} borders {}",
        graph.operations.len(),
        recorded.peak.0,
        recorded.time.0,
        rekindle_plan::graph::borders(graph).len()
    );
    for percent in [80, 50, 30, 20, 10] {
        let budget = Bytes(recorded.peak.0 * percent / 100);
        for planner in [Segments, Optimal, Graph] {
            let start = std::time::Instant::now();
            let request = GraphRequest {
                planner,
                ..GraphRequest::within(budget)
            };
            match plan_graph(graph, &request) {
                Ok(plan) => eprint!(
                    "{percent}% {planner:?}: x{:.4} rep {} {:.2?}  ",
                    plan.simulated.time.0 / recorded.time.0,
                    plan.simulated.repeated,
                    start.elapsed()
                ),
                Err(error) => eprint!("{percent}%: {error} in {:?}", start.elapsed()),
            }
        }
        eprintln!();
    }
}
