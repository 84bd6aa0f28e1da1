//! A graph of ten thousand operations is planned in seconds, in a build without optimisation too.
use crate::graph_support::graphs::{Sequence, residual};
use rekindle_plan::graph::{Program, plan_graph, simulate};
use rekindle_plan::{Bytes, Request};

#[test]
fn ten_thousand_operations() {
    let graph = residual(&mut Sequence(3), 400, 8);
    assert!(graph.operations.len() > 10_000);
    let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
    let request = Request::within(Bytes(recorded.peak.0 / 2));
    let plan = plan_graph(&graph, &request).unwrap();
    assert!(plan.simulated.peak <= Bytes(recorded.peak.0 / 2));
    assert!(plan.simulated.time.0 <= 1.5 * recorded.time.0);
}

/// A chain so deep that a recursion over it would overflow the stack: everything must be made again from the start.
#[test]
fn ten_thousand_operations_in_a_row() {
    let graph = crate::graph_support::graphs::equal_steps(5_000);
    let request = Request::within(Bytes(200));
    let plan = plan_graph(&graph, &request).unwrap();
    assert!(plan.simulated.peak <= Bytes(200));
}
