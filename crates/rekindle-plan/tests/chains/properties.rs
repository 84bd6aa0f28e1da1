//! Properties of every planner on random chains, with parameter gradients and alternatives.
//!
//! Sizes here have no common divisor and are large, so that `optimal` has to round them to slots.

use proptest::prelude::*;
use rekindle_plan::{
    Action, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Schedule, StageId, frontier,
    plan, planner, simulate, smallest_peak,
};

use crate::least_time::least_time;
use crate::support::{Shape, cases, random_chain};

/// Times are sums of small whole numbers here, so they are exact.
const ROUNDED: Shape = Shape {
    stages: 12,
    unit: 1_000_003,
    grads: true,
    alternatives: true,
    tracked_temps: true,
};

fn ask(
    chain: &Chain,
    planner: PlannerKind,
    budget: Bytes,
    slots: usize,
) -> Result<Plan, PlanError> {
    plan(
        chain,
        &PlanRequest {
            planner,
            budget: Some(budget),
            segments: None,
            slots,
        },
    )
}

/// The plan's time, after the simulator has confirmed what it promises; `None` where nothing fits.
fn time(chain: &Chain, planner: PlannerKind, budget: Bytes, slots: usize) -> Option<f64> {
    match ask(chain, planner, budget, slots) {
        Ok(plan) => {
            let run = simulate(chain, &plan.schedule).unwrap();
            assert_eq!((run.peak, run.time), (plan.peak, plan.step));
            assert_eq!(run.at_peak.total(), run.peak);
            assert!(
                run.peak <= budget,
                "{planner}: {} > {}",
                run.peak.0,
                budget.0
            );
            assert!(least_time(chain, budget) <= plan.step);
            Some(plan.step.0)
        }
        Err(PlanError::Infeasible {
            smallest,
            smallest_of_all,
            ..
        }) => {
            assert!(budget < smallest);
            assert!(smallest_of_all <= smallest);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// From just below the smallest peak to just above the plain one.
fn budgets(chain: &Chain, count: u64) -> Vec<Bytes> {
    let smallest = smallest_peak(chain).unwrap().0.0;
    let plain = simulate(chain, &planner::none(chain.stages.len()).unwrap())
        .unwrap()
        .peak
        .0;
    let range = plain.saturating_sub(smallest) + 2;
    (0..=count)
        .map(|k| Bytes((smallest + range * k / count).saturating_sub(1)))
        .collect()
}

proptest! {
    #![proptest_config(cases(25))]

    #[test]
    fn better_planners_are_never_slower(chain in random_chain(ROUNDED), slots in 1_usize..60) {
        for budget in budgets(&chain, 5) {
            let optimal = time(&chain, PlannerKind::Optimal, budget, slots);
            let segments = time(&chain, PlannerKind::Segments, budget, slots);
            let uniform = time(&chain, PlannerKind::Uniform, budget, slots);
            let none = time(&chain, PlannerKind::None, budget, slots);
            let no_slower = |better: Option<f64>, worse: Option<f64>| worse.is_none_or(|worse| better.is_some_and(|better| better <= worse));
            prop_assert!(no_slower(optimal, segments), "optimal {optimal:?}, segments {segments:?} at {}", budget.0);
            prop_assert!(no_slower(segments, uniform), "segments {segments:?}, uniform {uniform:?} at {}", budget.0);
            prop_assert!(no_slower(uniform, none));
            prop_assert!(no_slower(segments, time(&chain, PlannerKind::Sqrt, budget, slots)));
            time(&chain, PlannerKind::Revolve, budget, slots);
            time(&chain, PlannerKind::Auto, budget, slots);
        }
    }

    #[test]
    fn parts_at_the_peak_are_what_the_actions_so_far_have_left(chain in random_chain(ROUNDED)) {
        for budget in budgets(&chain, 3) {
            let Ok(plan) = ask(&chain, PlannerKind::Optimal, budget, 40) else {
                continue;
            };
            let run = simulate(&chain, &plan.schedule).unwrap();
            let (mut graphs, mut parameter_gradients) = (vec![0; chain.stages.len()], 0);
            for (place, &action) in plan.schedule.actions()[..=run.peak_action].iter().enumerate() {
                match action {
                    Action::ForwardTracked { stage, alternative } => {
                        let way = chain.stages[stage.0].tracked(alternative).unwrap();
                        graphs[stage.0] = way.saved_bytes.0;
                    }
                    Action::Backward(stage) => {
                        // At its own peak a backward still reads its graph.
                        if place < run.peak_action {
                            graphs[stage.0] = 0;
                        }
                        parameter_gradients += chain.stages[stage.0].grad_bytes.0;
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(run.at_peak.graphs.0, graphs.iter().sum::<u64>());
            prop_assert_eq!(run.at_peak.parameter_gradients.0, parameter_gradients);
            prop_assert_eq!(run.at_peak.fixed, chain.fixed_bytes + chain.optimizer.state_bytes);
        }
    }

    #[test]
    fn more_room_is_never_slower(chain in random_chain(ROUNDED), slots in 1_usize..40) {
        for planner in PlannerKind::ALL {
            // `auto` prefers `none` where it fits, which an alternative may beat.
            if planner == PlannerKind::Auto {
                continue;
            }
            let mut least = f64::INFINITY;
            for budget in budgets(&chain, 8) {
                match time(&chain, planner, budget, slots) {
                    Some(time) => {
                        prop_assert!(time <= least, "{planner} at {}: {time} > {least}", budget.0);
                        least = time;
                    }
                    None => prop_assert!(least.is_infinite(), "{planner} fits less than {}", budget.0),
                }
            }
        }
    }

    #[test]
    fn the_smallest_budget_works_and_one_byte_less_does_not(chain in random_chain(ROUNDED)) {
        for planner in PlannerKind::ALL {
            let smallest = match ask(&chain, planner, Bytes(0), 20) {
                Err(PlanError::Infeasible { smallest, smallest_of_all, .. }) => {
                    prop_assert_eq!(smallest_of_all, smallest_peak(&chain).unwrap().0);
                    smallest
                }
                // A chain may need nothing at all.
                other => { prop_assert!(other.is_ok()); continue; }
            };
            let plan = ask(&chain, planner, smallest, 20).unwrap();
            prop_assert_eq!(plan.peak, smallest);
            prop_assert!(ask(&chain, planner, Bytes(smallest.0 - 1), 20).is_err());
        }
    }

    /// The fewest segments and the exact number: no other cut with as many is faster (all cuts of up to 8 stages).
    #[test]
    fn segments_finds_the_best_cut(
        chain in random_chain(Shape { stages: 8, ..ROUNDED }), pick in 0_u64..=4
    ) {
        let stages = chain.stages.len();
        let budget = budgets(&chain, 4)[pick as usize];
        let mut best: Vec<Option<(f64, usize)>> = vec![None; stages + 1];
        for cuts in 0_u32..1 << (stages - 1) {
            let starts: Vec<usize> = (1..stages).filter(|&i| cuts >> (i - 1) & 1 == 1).collect();
            let run = simulate(&chain, &planner::single_level(stages, &starts).unwrap()).unwrap();
            if run.peak <= budget {
                let found = (run.time.0, starts.len() + 1);
                for slot in [0, starts.len() + 1] {
                    if best[slot].is_none_or(|best| found < best) {
                        best[slot] = Some(found);
                    }
                }
            }
        }
        for (count, expected) in best.into_iter().enumerate() {
            let count = (count > 0).then_some(count);
            let schedule = planner::segments(&chain, budget, count).unwrap();
            let found = schedule.map(|schedule| {
                let segments = schedule.segments().unwrap().len();
                (simulate(&chain, &schedule).unwrap().time.0, segments)
            });
            prop_assert_eq!(found, expected, "{:?} segments", count);
        }
    }

    #[test]
    fn the_frontier_agrees_with_the_plans(chain in random_chain(Shape { stages: 8, ..ROUNDED }), slots in 4_usize..40) {
        for kind in [PlannerKind::Uniform, PlannerKind::Segments, PlannerKind::Revolve, PlannerKind::Optimal] {
            let points = frontier(&chain, kind, slots).unwrap();
            prop_assert!(points.windows(2).all(|pair| pair[0].peak < pair[1].peak && pair[0].step > pair[1].step));
            for point in points {
                let planned = time(&chain, kind, point.peak, slots).unwrap();
                prop_assert!(planned <= point.step.0, "{kind} at {}: {planned} > {}", point.peak.0, point.step.0);
            }
        }
    }

    /// A window of a repeating chain is computed once for all its copies, with roundings of its own.
    #[test]
    fn repeating_stages_are_planned_within_the_budget(
        chain in random_chain(Shape { stages: 4, ..ROUNDED }), times in 2_usize..6, slots in 10_usize..60
    ) {
        let mut repeated = chain.clone();
        repeated.stages = chain.stages.iter().cycle().take(chain.stages.len() * times).cloned().collect();
        let mut least = f64::INFINITY;
        for budget in budgets(&repeated, 8) {
            if let Some(time) = time(&repeated, PlannerKind::Optimal, budget, slots) {
                prop_assert!(time <= least);
                least = time;
            }
        }
    }

    #[test]
    fn chains_round_trip(chain in random_chain(ROUNDED)) {
        prop_assert_eq!(Chain::from_json(&chain.to_json().unwrap()).unwrap(), chain);
    }

    #[test]
    fn actions_round_trip(stage: usize, alternative: usize) {
        let stage = StageId(stage);
        for action in [
            Action::Forward(stage), Action::ForwardKeep(stage), Action::ForwardTracked { stage, alternative },
            Action::Loss, Action::Backward(stage), Action::Optimize,
        ] {
            prop_assert_eq!(action.to_string().parse::<Action>().unwrap(), action);
        }
    }

    /// Whatever is left of a valid schedule after an action is taken out is refused or still runs; nothing panics.
    #[test]
    fn damaged_schedules_never_panic(chain in random_chain(ROUNDED), out in any::<prop::sample::Index>()) {
        let schedule = smallest_peak(&chain).unwrap().1;
        let mut actions = schedule.actions().to_vec();
        actions.remove(out.index(actions.len()));
        if let Ok(damaged) = Schedule::new(chain.stages.len(), actions) {
            simulate(&chain, &damaged).unwrap();
        }
    }
}
