//! More memory never makes a plan slower, and the frontier has the plans of all budgets.
//!
//! Times are compared to the last bit.

use proptest::prelude::*;
use rekindle_plan::{Bytes, Chain, Planner, Request, Seconds};

use crate::deep_linear::deep_linear;
use crate::planned::{Plan, Refused, frontier, plain_peak, plan, smallest_peak};
use crate::support::{Shape, cases, random_chain};

/// Times are sums of small whole numbers here.
const RANDOM: Shape = Shape {
    stages: 12,
    unit: 1_000_003,
    grads: true,
    tracked_temps: true,
};

fn time(chain: &Chain, planner: Planner, budget: Bytes) -> Option<f64> {
    let request = Request::of(planner, Some(budget));
    match plan(chain, &request) {
        Ok(plan) => {
            assert!(plan.peak <= budget);
            Some(plan.step.0)
        }
        Err(Refused::Infeasible { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// The time of the fastest point of a frontier within a budget.
fn of_frontier(points: &[Plan], budget: Bytes) -> Option<f64> {
    let fitting = points.iter().filter(|point| point.peak <= budget);
    fitting.map(|point| point.step.0).min_by(f64::total_cmp)
}

/// From just below the smallest peak to just above the plain one.
fn ends(chain: &Chain) -> (u64, u64) {
    let smallest = smallest_peak(chain).0;
    let plain = plain_peak(chain).0;
    (smallest.saturating_sub(1), plain.max(smallest) + 1)
}

/// Asserts that the frontier and the plans agree on `count` budgets, and just around the peaks of `points` points.
fn agree(chain: &Chain, planner: Planner, count: u64, points: usize) {
    let all = frontier(chain, planner).unwrap();
    let (low, high) = ends(chain);
    let mut budgets: Vec<u64> = (0..=count)
        .map(|k| low + (high - low) * k / count)
        .collect();
    let every = all.len().div_ceil(points).max(1);
    for point in all.iter().step_by(every) {
        budgets.extend([point.peak.0 - 1, point.peak.0, point.peak.0 + 1]);
    }
    budgets.sort_unstable();
    let mut least = None;
    for budget in budgets.into_iter().map(Bytes) {
        let planned = time(chain, planner, budget);
        assert_eq!(
            planned,
            of_frontier(&all, budget),
            "{planner} within {} bytes: the plan, and the frontier's best",
            budget.0
        );
        assert!(
            planned.is_some() || least.is_none(),
            "{planner}: {} bytes are too few, fewer were enough",
            budget.0
        );
        assert!(
            planned.is_none_or(|planned| least.is_none_or(|least| planned <= least)),
            "{planner} within {} bytes: {planned:?}, {least:?} with less",
            budget.0
        );
        least = planned;
    }
}

proptest! {
    #![proptest_config(cases(5))]

    #[test]
    fn plans_of_random_chains_lie_on_the_frontier(chain in random_chain(RANDOM)) {
        agree(&chain, Planner::Optimal, 30, 10);
        agree(&chain, Planner::Auto, 30, 10);
        agree(&chain, Planner::Segments(None), 30, 10);
    }
}

#[test]
fn plans_of_a_deep_linear_network_lie_on_the_frontier() {
    agree(&deep_linear(40), Planner::Optimal, 20, 7);
    agree(&deep_linear(40), Planner::Auto, 10, 3);
}

/// Windows of equal stages share their steps.
#[test]
fn plans_of_repeating_stages_lie_on_the_frontier() {
    let mut chain = deep_linear(40);
    let kinds = chain.stages[1..4].to_vec();
    chain.stages = kinds.into_iter().cycle().take(40).collect();
    agree(&chain, Planner::Optimal, 20, 40);
}

#[test]
fn stages_that_take_no_time_change_nothing() {
    let mut chain = deep_linear(40);
    for stage in chain.stages.iter_mut().step_by(3) {
        stage.forward_s = Seconds(0.0);
    }
    agree(&chain, Planner::Optimal, 10, 5);
}

/// Above some terabytes a need within a slot does not fit 32 bits: sizes are rounded up to larger units.
#[test]
fn petabytes_are_planned_too() {
    const TIMES: u64 = 1 << 27;
    let mut chain = deep_linear(66);
    for stage in &mut chain.stages {
        for size in [
            &mut stage.output_bytes,
            &mut stage.saved_bytes,
            &mut stage.forward_temp_bytes,
            &mut stage.tracked_temp_bytes,
            &mut stage.backward_temp_bytes,
            &mut stage.grad_bytes,
        ] {
            size.0 = size.0 * TIMES + 1;
        }
    }
    let (low, high) = ends(&chain);
    let mut least = None;
    for k in 1..=10 {
        let budget = Bytes(low + 1 + (high - low) * k / 10);
        let planned = time(&chain, Planner::Optimal, budget);
        assert!(least.is_none_or(|least| planned.is_some_and(|planned| planned <= least)));
        least = planned;
    }
    assert_eq!(
        least,
        time(&chain, Planner::None, Bytes(u64::MAX)),
        "with enough memory nothing is recomputed"
    );
}
