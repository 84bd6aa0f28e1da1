//! How many segments are tried, and where equal ones are cut.

use rekindle_plan::schedule::{Schedule, written};
use rekindle_plan::{
    Bytes, Chain, GraphPlan, Planner, Request, Seconds, Stage, chain_frontier, plan_chain,
};

/// Equal stages, of which the graphs are large and the outputs small: shorter segments always take less.
fn equal_stages(stages: usize) -> Chain {
    let stage = Stage {
        forward_s: Seconds(1.0),
        output_bytes: Bytes(1),
        saved_bytes: Bytes(1 << 20),
        ..Stage::default()
    };
    Chain {
        stages: vec![stage; stages],
        ..Chain::default()
    }
}

/// The number of segments of a plan, of which the sizes differ by at most one, with a largest one at the end.
fn equal_segments(plan: &GraphPlan, stages: usize) -> usize {
    let segments = plan.segments().unwrap();
    let sizes: Vec<usize> = segments
        .iter()
        .map(|(first, last)| last.0 + 1 - first.0)
        .collect();
    let largest = sizes.iter().max().unwrap();
    assert_eq!(sizes.iter().sum::<usize>(), stages);
    assert!(largest - sizes.iter().min().unwrap() <= 1);
    assert_eq!(sizes.last(), Some(largest));
    sizes.len()
}

#[test]
fn numbers_of_segments_rise_from_one_to_all() {
    for stages in (1..40).chain([999, 1_000, 1_001, 1_500, 10_000]) {
        let chain = equal_stages(stages);
        let number = |plan: GraphPlan| equal_segments(&plan, stages);
        let numbers = chain_frontier(&chain, Planner::Segments(None), number).unwrap();
        assert!(numbers.len() * stages <= 4_000_000);
        assert_eq!((numbers[0], numbers[numbers.len() - 1]), (stages, 1));
        assert!(numbers.windows(2).all(|pair| pair[0] > pair[1]));
    }
}

/// Chains of more than 2,000 stages are not cut by bytes.
#[test]
fn every_number_of_segments_of_a_long_chain_is_cut_equally() {
    let stages = 2_001;
    let chain = equal_stages(stages);
    for count in (1..40).chain([1_000, 1_001, stages - 1, stages]) {
        let request = Request::of(Planner::Segments(Some(count)), None);
        let plan = plan_chain(&chain, &request).unwrap();
        assert_eq!(equal_segments(&plan, stages), count);
    }
}

#[test]
fn two_segments_of_three_stages() {
    assert_eq!(
        written(&Schedule::of_segments(&[1, 3]).actions()).join(", "),
        "forward_keep 0, forward_tracked 1, forward_tracked 2, loss, backward 2, backward 1, forward_tracked 0, \
         backward 0, optimize"
    );
}
