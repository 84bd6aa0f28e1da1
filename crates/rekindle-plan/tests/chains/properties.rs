//! Properties of every planner on random chains, with parameter gradients.
//!
//! Sizes here have no common divisor and are large, so that `optimal` has to round them to slots.

use proptest::prelude::*;
use rekindle_plan::graph::{SpanPass, Stages, held};
use rekindle_plan::schedule::{Schedule, written};
use rekindle_plan::{Action, Bytes, Chain, Planner, Request, StageId};

use crate::least_time::least_time;
use crate::planned::{Plan, Refused, frontier, output_first, plain_peak, plan, smallest_peak};
use crate::referee::referee;
use crate::support::{Shape, cases, random_chain};

/// Times are sums of small whole numbers here, so they are exact.
const ROUNDED: Shape = Shape {
    stages: 12,
    unit: 1_000_003,
    grads: true,
    tracked_temps: true,
};

fn ask(chain: &Chain, planner: Planner, budget: Bytes) -> Result<Plan, Refused> {
    let request = Request::of(planner, Some(budget));
    plan(chain, &request)
}

/// The plan's time; `None` where nothing fits.
fn time(chain: &Chain, planner: Planner, budget: Bytes) -> Option<f64> {
    match ask(chain, planner, budget) {
        Ok(plan) => {
            assert!(
                plan.peak <= budget,
                "{planner}: {} > {}",
                plan.peak.0,
                budget.0
            );
            assert!(least_time(chain, budget) <= plan.step);
            Some(plan.step.0)
        }
        Err(Refused::Infeasible {
            smallest,
            smallest_of_all,
            ..
        }) => {
            assert!(budget < smallest);
            assert!(smallest_of_all <= smallest);
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// From just below the smallest peak to just above the plain one.
fn budgets(chain: &Chain, count: u64) -> Vec<Bytes> {
    let smallest = smallest_peak(chain).0;
    let plain = plain_peak(chain).0;
    let range = plain.saturating_sub(smallest) + 2;
    (0..=count)
        .map(|k| Bytes((smallest + range * k / count).saturating_sub(1)))
        .collect()
}

proptest! {
    #![proptest_config(cases(25))]

    #[test]
    fn better_planners_are_never_slower(chain in random_chain(ROUNDED)) {
        for budget in budgets(&chain, 5) {
            let optimal = time(&chain, Planner::Optimal, budget);
            let segments = time(&chain, Planner::Segments(None), budget);
            let none = time(&chain, Planner::None, budget);
            let no_slower = |better: Option<f64>, worse: Option<f64>| worse.is_none_or(|worse| better.is_some_and(|better| better <= worse));
            prop_assert!(no_slower(optimal, segments), "optimal {optimal:?}, segments {segments:?} at {}", budget.0);
            prop_assert!(no_slower(segments, none));
            prop_assert_eq!(time(&chain, Planner::Auto, budget), optimal);
        }
    }

    /// The graph of a chain has a pass of a stage for every action of a schedule, and no other.
    #[test]
    fn every_action_takes_on_the_graph_what_it_says(chain in random_chain(ROUNDED)) {
        for budget in budgets(&chain, 3) {
            let Ok(plan) = ask(&chain, Planner::Optimal, budget) else {
                continue;
            };
            let (graph, stages) = Stages::of_chain(&chain);
            graph.validate().unwrap();
            let program = stages.program(&graph, &plan.schedule).unwrap();
            let spans = stages.spans(&graph, &program);
            let told: Vec<Action> = spans.iter().map(|span| match span.pass {
                SpanPass::Forward | SpanPass::Recompute => Action::Forward(span.stage),
                SpanPass::Loss => Action::Loss,
                SpanPass::Backward => Action::Backward(span.stage),
            }).collect();
            prop_assert_eq!([&told[..], &[Action::Optimize]].concat(), plan.schedule.actions());
            let (peaks, _) = referee(&output_first(&chain), &written(&plan.schedule.actions()));
            let mut gradients = Bytes::ZERO;
            for ((moment, peak), action) in held(&graph, &program, &spans).iter().zip(peaks).zip(told) {
                prop_assert_eq!(moment.at_peak.total(), peak, "{}", action);
                if let Action::Backward(StageId(stage)) = action {
                    gradients += chain.stages[stage].grad_bytes;
                    gradients += if stage == 0 { chain.gradient_bytes(0) } else { Bytes::ZERO };
                }
                prop_assert_eq!(moment.at_peak.parameter_gradients, gradients, "{}", action);
                prop_assert_eq!(moment.at_peak.fixed, chain.resident_bytes());
            }
        }
    }

    #[test]
    fn more_room_is_never_slower(chain in random_chain(ROUNDED)) {
        for planner in Planner::ALL {
            let mut least = f64::INFINITY;
            for budget in budgets(&chain, 8) {
                match time(&chain, planner, budget) {
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
        for planner in Planner::ALL {
            let smallest = match ask(&chain, planner, Bytes(0)) {
                Err(Refused::Infeasible { smallest, smallest_of_all, .. }) => {
                    prop_assert_eq!(smallest_of_all, smallest_peak(&chain));
                    smallest
                }
                // A chain may need nothing at all.
                other => { prop_assert!(other.is_ok()); continue; }
            };
            let plan = ask(&chain, planner, smallest).unwrap();
            prop_assert_eq!(plan.peak, smallest);
            prop_assert!(ask(&chain, planner, Bytes(smallest.0 - 1)).is_err());
        }
    }

    #[test]
    fn the_frontier_agrees_with_the_plans(chain in random_chain(Shape { stages: 8, ..ROUNDED })) {
        for planner in Planner::ALL {
            let points = frontier(&chain, planner).unwrap();
            prop_assert!(points.windows(2).all(|pair| pair[0].peak < pair[1].peak && pair[0].step > pair[1].step));
            for point in points {
                let planned = time(&chain, planner, point.peak).unwrap();
                prop_assert!(planned <= point.step.0, "{planner} at {}: {planned} > {}", point.peak.0, point.step.0);
            }
        }
    }

    /// Against every cut into as many segments.
    #[test]
    fn segments_are_cut_where_the_peak_is_smallest(
        chain in random_chain(Shape { stages: 8, ..ROUNDED }), count in 1_usize..8
    ) {
        let stages = chain.stages.len();
        let count = count.min(stages);
        let request = Request::of(Planner::Segments(Some(count)), None);
        let planned = plan(&chain, &request).unwrap();
        let cuts = (0..1_u32 << (stages - 1)).filter(|cut| cut.count_ones() as usize == count - 1);
        let peaks = cuts.map(|cut| {
            let ends = (1..stages).filter(|end| cut >> (end - 1) & 1 == 1).chain([stages]);
            let schedule = Schedule::of_segments(&ends.collect::<Vec<_>>());
            let (peaks, _) = referee(&output_first(&chain), &written(&schedule.actions()));
            peaks.into_iter().max().unwrap()
        });
        let least = peaks.min().unwrap();
        prop_assert!(planned.peak.0 <= least.0 + plain_peak(&chain).0 / 500_000 + 2, "{} of {}", planned.peak.0, least.0);
        prop_assert_eq!(planned.schedule.segments().unwrap().len(), count);
    }

    /// A window of a repeating chain is computed once for all its copies, with roundings of its own.
    #[test]
    fn repeating_stages_are_planned_within_the_budget(
        chain in random_chain(Shape { stages: 4, ..ROUNDED }), times in 2_usize..6
    ) {
        let mut repeated = chain.clone();
        repeated.stages = chain.stages.iter().cycle().take(chain.stages.len() * times).cloned().collect();
        let mut least = f64::INFINITY;
        for budget in budgets(&repeated, 8) {
            if let Some(time) = time(&repeated, Planner::Optimal, budget) {
                prop_assert!(time <= least);
                least = time;
            }
        }
    }

    #[test]
    fn chains_round_trip(chain in random_chain(ROUNDED)) {
        prop_assert_eq!(Chain::from_json(&chain.to_json().unwrap()).unwrap(), chain);
    }
}
