//! More memory or more slots never make a plan slower, and the frontier has the plans of all budgets.
//!
//! Times are compared to the last bit.

use proptest::prelude::*;
use rekindle_plan::{
    Alternative, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Seconds, frontier, plan,
    planner, simulate, smallest_peak,
};

use crate::deep_linear::deep_linear;
use crate::support::{Shape, cases, random_chain};

/// Times are sums of small whole numbers here.
const RANDOM: Shape = Shape {
    stages: 12,
    unit: 1_000_003,
    grads: true,
    alternatives: true,
    tracked_temps: true,
};

fn time(chain: &Chain, planner: PlannerKind, budget: Bytes, slots: usize) -> Option<f64> {
    let request = PlanRequest {
        planner,
        budget: Some(budget),
        slots,
        ..PlanRequest::default()
    };
    match plan(chain, &request) {
        Ok(plan) => {
            assert!(plan.peak <= budget);
            Some(plan.step.0)
        }
        Err(PlanError::Infeasible { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The time of the fastest point of a frontier within a budget.
fn of_frontier(points: &[Plan], budget: Bytes) -> Option<f64> {
    let fitting = points.iter().filter(|point| point.peak <= budget);
    fitting.map(|point| point.step.0).min_by(f64::total_cmp)
}

/// From just below the smallest peak to just above the plain one.
fn ends(chain: &Chain) -> (u64, u64) {
    let smallest = smallest_peak(chain).unwrap().0.0;
    let plain = planner::none(chain.stages.len()).unwrap();
    let plain = simulate(chain, &plain).unwrap().peak.0;
    (smallest.saturating_sub(1), plain.max(smallest) + 1)
}

/// Asserts that the frontier and the plans agree on `count` budgets, and just around the peaks of `points` points.
fn agree(chain: &Chain, planner: PlannerKind, slots: usize, count: u64, points: usize) {
    let all = frontier(chain, planner, slots).unwrap();
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
        let planned = time(chain, planner, budget, slots);
        assert_eq!(
            planned,
            of_frontier(&all, budget),
            "{planner} within {} bytes, {slots} slots: the plan, and the frontier's best",
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
    fn plans_of_random_chains_lie_on_the_frontier(chain in random_chain(RANDOM), slots in 1_usize..600) {
        agree(&chain, PlannerKind::Optimal, slots, 30, 10);
        agree(&chain, PlannerKind::Auto, slots, 30, 10);
        agree(&chain, PlannerKind::Segments, slots, 30, 10);
        agree(&chain, PlannerKind::Uniform, slots, 30, 10);
        agree(&chain, PlannerKind::Revolve, slots, 30, 10);
    }
}

#[test]
fn plans_of_a_deep_linear_network_lie_on_the_frontier() {
    agree(&deep_linear(40), PlannerKind::Optimal, 250, 30, 10);
    agree(&deep_linear(40), PlannerKind::Auto, 250, 10, 3);
    agree(&deep_linear(40), PlannerKind::Segments, 250, 30, 10);
}

/// Coarse slots, in which many plans of a window fall into one slot.
#[test]
fn plans_from_coarse_slots_lie_on_the_frontier() {
    agree(&deep_linear(100), PlannerKind::Optimal, 20, 15, 5);
}

#[test]
fn stages_that_take_no_time_change_nothing() {
    let mut chain = deep_linear(40);
    for stage in chain.stages.iter_mut().step_by(3) {
        stage.forward_s = Seconds(0.0);
    }
    agree(&chain, PlannerKind::Optimal, 250, 20, 7);
}

/// A faster alternative that needs more: the plain run fits first, and is not the fastest.
#[test]
fn auto_is_as_fast_as_optimal_beside_faster_alternatives() {
    let mut chain = deep_linear(12);
    for stage in &mut chain.stages {
        stage.alternatives = vec![Alternative {
            name: "fused".into(),
            forward_s: stage.forward_s * 0.5,
            backward_s: stage.backward_s,
            saved_bytes: Bytes(stage.saved_bytes.0 * 2),
            tracked_temp_bytes: stage.tracked_temp_bytes,
            backward_temp_bytes: stage.backward_temp_bytes,
        }];
    }
    agree(&chain, PlannerKind::Auto, 500, 20, 7);
    let budget = Bytes(ends(&chain).1);
    assert_eq!(
        time(&chain, PlannerKind::Auto, budget, 500),
        time(&chain, PlannerKind::Optimal, budget, 500)
    );
}

/// With more slots a plan is no slower than with fewer slots and one of them less memory.
#[test]
fn more_slots_are_not_slower_beyond_one_slot() {
    const SLOTS: [usize; 4] = [100, 250, 500, 1_000];
    for chain in [deep_linear(30), deep_linear(70)] {
        let (low, high) = ends(&chain);
        let of_slots = SLOTS.map(|slots| {
            let frontier = frontier(&chain, PlannerKind::Optimal, slots).unwrap();
            (slots, frontier)
        });
        for (index, (fewer, coarse)) in of_slots.iter().enumerate() {
            let slot = (high - chain.resident_bytes().0) / *fewer as u64;
            for (more, fine) in &of_slots[index + 1..] {
                for k in 0..=100 {
                    let budget = low + (high - low) * k / 100;
                    let Some(coarse) = of_frontier(coarse, Bytes(budget - slot)) else {
                        continue;
                    };
                    let fine = of_frontier(fine, Bytes(budget)).unwrap();
                    assert!(
                        fine <= coarse,
                        "{budget} bytes: {fine} with {more} slots, {coarse} with {fewer}"
                    );
                }
            }
        }
    }
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
    for k in 1..=20 {
        let budget = Bytes(low + 1 + (high - low) * k / 20);
        let planned = time(&chain, PlannerKind::Optimal, budget, 500);
        assert!(least.is_none_or(|least| planned.is_some_and(|planned| planned <= least)));
        least = planned;
    }
    assert_eq!(
        least,
        time(&chain, PlannerKind::None, Bytes(u64::MAX), 500),
        "with enough memory nothing is recomputed"
    );
}
