//! Long chains are planned within the patience of a test suite, or refused in words.

use rekindle_plan::{Bytes, Chain, Planner, Request};

use crate::deep_linear::deep_linear;
use crate::planned::{Plan, Refused, frontier, plain_peak, plan};

const LONG: usize = 10_000;

fn ask(chain: &Chain, planner: Planner, budget: Option<Bytes>) -> Result<Plan, Refused> {
    let request = Request::of(planner, budget);
    plan(chain, &request)
}

/// A part of what the plain run needs above what is always resident.
fn part_of_plain(chain: &Chain, part: u64) -> Bytes {
    let plain = plain_peak(chain) - chain.resident_bytes();
    chain.resident_bytes() + Bytes(plain.0 / part)
}

#[test]
fn ten_thousand_stages_are_planned() {
    let chain = deep_linear(LONG);
    let budget = part_of_plain(&chain, 2);
    for planner in [Planner::Segments(None), Planner::Auto] {
        let plan = ask(&chain, planner, Some(budget)).unwrap();
        assert!(plan.peak <= budget, "{planner}");
    }
    let plain = ask(&chain, Planner::Auto, None).unwrap();
    assert_eq!(plain.planner, Planner::None);
}

#[test]
fn ten_thousand_stages_have_a_smallest_budget() {
    let chain = deep_linear(LONG);
    let smallest = |planner| match ask(&chain, planner, Some(Bytes(0))) {
        Err(Refused::Infeasible {
            smallest,
            smallest_of_all,
            ..
        }) => {
            assert!(smallest_of_all <= smallest);
            smallest
        }
        other => panic!("{planner}: {other:?}"),
    };
    let segments = smallest(Planner::Segments(None));
    assert_eq!(smallest(Planner::Auto), segments);
    let plan = ask(&chain, Planner::Auto, Some(segments)).unwrap();
    assert_eq!(plan.peak, segments);
}

#[test]
fn a_hundred_thousand_stages_are_refused_or_planned_at_once() {
    let chain = deep_linear(100_000);
    let budget = Some(part_of_plain(&chain, 2));
    for (planner, tries, most) in [
        (Planner::Segments(None), "segments", 20_000),
        (Planner::Optimal, "optimal", 2_000),
        (Planner::Auto, "segments", 20_000),
    ] {
        let Err(Refused::Other(error)) = ask(&chain, planner, budget) else {
            panic!("{planner}");
        };
        assert_eq!(
            error.to_string(),
            format!(
                "the {tries} planner takes at most {most} stages here, and the chain has 100000: merge neighbouring \
                 stages, or give a number of segments"
            )
        );
        assert!(frontier(&chain, planner).is_err());
    }
    assert!(ask(&chain, Planner::None, None).is_ok());
    assert!(ask(&chain, Planner::Segments(Some(300)), None).is_ok());
}

/// Schedules of all numbers of segments would hold some 30 million actions.
#[test]
fn frontiers_of_three_thousand_stages_fit_in_memory() {
    let chain = deep_linear(3_000);
    let points = frontier(&chain, Planner::Segments(None)).unwrap();
    let actions = points.iter().map(|point| point.schedule.actions().len());
    assert!(actions.sum::<usize>() < 30_000_000);
    assert!(points.windows(2).all(|pair| pair[0].peak < pair[1].peak));
}
