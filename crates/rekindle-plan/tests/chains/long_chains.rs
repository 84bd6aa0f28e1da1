//! Long chains are planned within the patience of a test suite, or refused in words.

use rekindle_plan::{
    Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, frontier, plan, planner, simulate,
};

use crate::deep_linear::deep_linear;

const LONG: usize = 10_000;

fn ask(chain: &Chain, planner: PlannerKind, budget: Option<Bytes>) -> Result<Plan, PlanError> {
    let request = PlanRequest {
        planner,
        budget,
        ..PlanRequest::default()
    };
    plan(chain, &request)
}

/// A part of what the plain run needs above what is always resident.
fn part_of_plain(chain: &Chain, part: u64) -> Bytes {
    let plain = planner::none(chain.stages.len()).unwrap();
    let plain = simulate(chain, &plain).unwrap().peak;
    chain.resident_bytes() + Bytes((plain - chain.resident_bytes()).0 / part)
}

#[test]
fn ten_thousand_stages_are_planned() {
    let chain = deep_linear(LONG);
    let budget = part_of_plain(&chain, 2);
    for planner in [
        PlannerKind::Uniform,
        PlannerKind::Sqrt,
        PlannerKind::Segments,
        PlannerKind::Revolve,
        PlannerKind::Auto,
    ] {
        let plan = ask(&chain, planner, Some(budget)).unwrap();
        assert!(plan.peak <= budget, "{planner}");
    }
    let plain = ask(&chain, PlannerKind::Auto, None).unwrap();
    assert_eq!(plain.planner, PlannerKind::None);
}

#[test]
fn ten_thousand_stages_have_a_smallest_budget() {
    let chain = deep_linear(LONG);
    let smallest = |planner| match ask(&chain, planner, Some(Bytes(0))) {
        Err(PlanError::Infeasible {
            smallest,
            smallest_of_all,
            ..
        }) => {
            assert!(smallest_of_all <= smallest);
            smallest
        }
        other => panic!("{planner}: {other:?}"),
    };
    let segments = smallest(PlannerKind::Segments);
    assert!(segments <= smallest(PlannerKind::Uniform));
    assert_eq!(smallest(PlannerKind::Auto), segments);
    let plan = ask(&chain, PlannerKind::Segments, Some(segments)).unwrap();
    assert_eq!(plan.peak, segments);
}

#[test]
fn too_many_stages_for_optimal_are_refused() {
    let error = ask(&deep_linear(LONG), PlannerKind::Optimal, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the optimal planner takes at most 2000 stages here, and the chain has 10000: merge neighbouring stages, \
         or use segments"
    );
}

#[test]
fn a_hundred_thousand_stages_are_refused_or_planned_at_once() {
    let chain = deep_linear(100_000);
    let budget = Some(part_of_plain(&chain, 2));
    let searching = |planner: &PlannerKind| *planner != PlannerKind::None;
    for planner in PlannerKind::ALL.into_iter().filter(searching) {
        let error = ask(&chain, planner, budget).unwrap_err();
        assert!(
            matches!(
                error,
                PlanError::TooManyStages {
                    stages: 100_000,
                    ..
                }
            ),
            "{planner}: {error}"
        );
        assert!(frontier(&chain, planner, 500).is_err());
    }
    assert!(ask(&chain, PlannerKind::None, None).is_ok());
    let request = PlanRequest {
        planner: PlannerKind::Uniform,
        segments: Some(300),
        ..PlanRequest::default()
    };
    assert!(plan(&chain, &request).is_ok());
}

/// A schedule for each of 3,000 numbers of snapshots holds some 30 million actions.
#[test]
fn frontiers_of_three_thousand_stages_fit_in_memory() {
    let chain = deep_linear(3_000);
    for planner in [
        PlannerKind::Uniform,
        PlannerKind::Sqrt,
        PlannerKind::Revolve,
    ] {
        let points = frontier(&chain, planner, 500).unwrap();
        let actions: usize = points
            .iter()
            .map(|point| point.schedule.actions().len())
            .sum();
        assert!(actions < 30_000_000, "{planner}: {actions}");
        assert!(points.windows(2).all(|pair| pair[0].peak < pair[1].peak));
    }
}
