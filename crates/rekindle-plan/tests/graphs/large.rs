//! Large graphs, and graphs near their smallest peak, are planned in seconds.
use crate::graph_support::graphs::{Sequence, equal_steps, residual, training};
use rekindle_plan::graph::{Program, plan_graph, simulate};
use rekindle_plan::{Bytes, PlanError, Request};

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
    let graph = equal_steps(5_000);
    let request = Request::within(Bytes(200));
    let plan = plan_graph(&graph, &request).unwrap();
    assert!(plan.simulated.peak <= Bytes(200));
}

/// In a fourteenth of its peak, what makes room for one value of this network takes it from others: a fit that only had
/// evictions to count would not end. A refusal names less than the peak of a plan that is found.
#[test]
fn planning_ends_where_evictions_make_each_other_necessary() {
    let graph = training(&mut Sequence(1), 800);
    let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
    let within = |percent| {
        let budget = Bytes(recorded.peak.0 * percent / 100);
        plan_graph(&graph, &Request::within(budget))
    };
    let plan = within(17).unwrap();
    match within(7) {
        Ok(smaller) => assert!(smaller.simulated.peak < plan.simulated.peak),
        Err(PlanError::Infeasible { leanest, .. }) => {
            assert!(leanest.simulated.peak < plan.simulated.peak);
        }
        Err(error) => panic!("{error}"),
    }
}
