//! Graphs that are chains, where the planners of chains and closed forms say what is possible.
use crate::graph_support::graphs::{Sequence, equal_steps, random_chain};
use rekindle_plan::graph::{OperationId, Stages, plan_graph};
use rekindle_plan::{Bytes, PlanError, Planner, Request, plan_chain};

#[test]
fn never_slower_than_optimal_on_the_same_chain() {
    let mut random = Sequence(11);
    for stages in 2..10 {
        let chain = random_chain(&mut random, stages);
        let (graph, _) = Stages::of_chain(&chain);
        let ask = |planner, budget| {
            let request = Request::of(planner, Some(budget));
            plan_chain(&chain, &request)
        };
        let plain = ask(Planner::None, Bytes::MAX).unwrap().simulated.peak;
        let Err(PlanError::Infeasible { leanest, .. }) = ask(Planner::Optimal, Bytes(0)) else {
            panic!("nothing takes no memory");
        };
        let least = leanest.simulated.peak;
        for part in 0..3 {
            let budget = Bytes(least.0 + (plain.0 - least.0) * part / 3);
            let over_chain = ask(Planner::Optimal, budget).unwrap().simulated.time;
            let over_graph = plan_graph(&graph, &Request::within(budget)).unwrap();
            assert!(over_graph.simulated.peak <= budget);
            assert!(
                over_graph.simulated.time.0 <= over_chain.0,
                "{stages} stages within {budget}: the search takes {}, the chain's optimum {}",
                over_graph.simulated.time,
                over_chain
            );
        }
    }
}

/// How many forward steps more than necessary are accepted: the search does not know the binomial schedule. Seen: 4%, of 20 steps
/// with 3 states.
const MOST_FORWARDS: f64 = 1.05;

/// Griewank & Walther 2000: reversing l equal steps with s stored states takes t(l,s) = r l - C(s+r, s+1) forward
/// steps, r the least number with l <= C(s+r, s), and no fewer. Here the given input is one of the states, and the
/// state that the steps advance through is overwritten as it goes; so s bytes leave room for s states.
#[test]
fn equal_steps_take_about_as_few_forwards_as_the_closed_form_says() {
    for (steps, states) in [(4, 1), (8, 1), (6, 2), (10, 2), (10, 3), (15, 4), (20, 3)] {
        let least = closed_form(steps, states);
        let graph = equal_steps(steps as usize);
        let plan = plan_graph(&graph, &Request::within(Bytes(states))).unwrap();
        let forward = |id: &&OperationId| !graph.operation(**id).backward;
        let found = plan.program.operations().iter().filter(forward).count() as u64;
        assert!(
            found >= least,
            "{steps} steps with {states} states: {found}"
        );
        assert!(
            found as f64 <= MOST_FORWARDS * least as f64,
            "{steps} steps with {states} states: {found} instead of {least}"
        );
    }
}

fn closed_form(steps: u64, states: u64) -> u64 {
    let binomial = |n: u64, k: u64| (0..k).fold(1, |value, i| value * (n - i) / (i + 1));
    let repetitions = (0..)
        .find(|r| steps <= binomial(states + r, states))
        .unwrap();
    repetitions * steps - binomial(states + repetitions, states + 1)
}
