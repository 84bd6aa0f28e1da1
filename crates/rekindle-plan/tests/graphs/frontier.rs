//! Plans of several graphs at many budgets, how long planning takes, and what plans of a transformer run again.
use std::time::Instant;

use crate::graph_support::graphs::{Kind, Sequence, equal_steps, residual, transformer, unet};
use crate::graph_support::leanest;
use rekindle_plan::graph::{GraphPlan, Program, plan_graph, simulate};
use rekindle_plan::{Bytes, Graph, Planner, Request};

/// The times of plans at budgets from the smallest to the recorded peak, in recorded times.
pub fn times(graph: &Graph, budgets: u64) -> Vec<f64> {
    graph.validate().unwrap();
    let least = leanest(graph).simulated;
    let recorded = simulate(graph, &Program::recorded(graph).unwrap());
    let budgets =
        (0..=budgets).map(|part| least.peak.0 + (recorded.peak.0 - least.peak.0) * part / budgets);
    let times = budgets.map(|budget| {
        let plan = plan_graph(graph, &Request::within(Bytes(budget))).unwrap();
        assert!(plan.simulated.peak.0 <= budget);
        plan.simulated.time.0 / recorded.time.0
    });
    times.collect()
}

/// `cargo test --release -p rekindle-plan --test graphs frontier -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes; prints how often the time rises with the budget"]
fn frontiers_of_six_graphs() {
    let graphs = [
        ("residual 4 x 4", residual(&mut Sequence(5), 4, 4)),
        ("residual 12 x 6", residual(&mut Sequence(6), 12, 6)),
        ("u-net of 3 levels", unet(3, false)),
        ("u-net of 6 levels", unet(6, true)),
        ("84 equal steps", equal_steps(84)),
        ("transformer of 48 layers", transformer(48).0),
    ];
    for (name, graph) in graphs {
        let started = Instant::now();
        let budgets = if graph.operations.len() < 1000 { 40 } else { 4 };
        let times = times(&graph, budgets);
        let rises = times.windows(2).filter(|pair| pair[1] > pair[0]).count();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let seconds = started.elapsed().as_secs_f64() / times.len() as f64;
        println!(
            "{name}: {} operations, mean time {mean:.4}, {rises} of {} rise, {seconds:.2} s a plan; {:?}",
            graph.operations.len(),
            times.len() - 1,
            times
                .iter()
                .step_by((times.len() / 8).max(1))
                .map(|time| (time * 1e4).round() / 1e4)
                .collect::<Vec<_>>(),
        );
    }
}

const KINDS: [Kind; 5] = [
    Kind::Norm,
    Kind::Projection,
    Kind::Attention,
    Kind::Activation,
    Kind::Residual,
];

/// Of each kind of forward operation, the share of its time that runs again.
fn run_again(graph: &Graph, kinds: &[Kind], plan: &GraphPlan) -> [f64; 5] {
    KINDS.map(|kind| {
        let seconds = |places: &mut dyn Iterator<Item = usize>| -> f64 {
            let of_kind = places.filter(|&place| kinds.get(place) == Some(&kind));
            of_kind.map(|place| graph.operations[place].seconds.0).sum()
        };
        let once = seconds(&mut (0..kinds.len()));
        let operations = plan.program.operations().iter();
        seconds(&mut operations.map(|id| id.index())) / once - 1.0
    })
}

fn planned(graph: &Graph, planner: Planner, budget: Option<Bytes>) -> GraphPlan {
    let request = Request::of(planner, budget);
    plan_graph(graph, &request).unwrap()
}

#[test]
fn what_is_dear_is_kept_and_what_is_cheap_is_run_again() {
    let (graph, kinds) = transformer(6);
    graph.validate().unwrap();
    let whole = planned(&graph, Planner::Segments(Some(6)), None);
    let single = planned(&graph, Planner::Auto, Some(whole.simulated.peak));
    assert!(single.simulated.peak <= whole.simulated.peak);
    assert!(single.simulated.time.0 < whole.simulated.time.0);
    let [norm, projection, _, activation, _] = run_again(&graph, &kinds, &single);
    let cheap = norm.min(activation);
    assert!(
        projection < cheap,
        "{projection} of products, {cheap} of what is cheap"
    );
    // A block as a segment runs everything again.
    let all = run_again(&graph, &kinds, &whole);
    assert!(
        projection < all[1] && all.iter().all(|share| *share > 0.5),
        "{all:?}"
    );
}

/// `cargo test --release -p rekindle-plan --test graphs frontier::blocks -- --ignored --nocapture`
#[test]
#[ignore = "takes a minute; prints the table in benches/results"]
fn single_operations_against_whole_blocks() {
    println!("layers, operations, within, planner, peak, time, run again of {KINDS:?}, planned in");
    for layers in [12, 48] {
        let (graph, kinds) = transformer(layers);
        let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
        let blocks = Planner::Segments(Some(layers as usize));
        let leanest = planned(&graph, blocks, None).simulated.peak;
        let half = Bytes(recorded.peak.0 / 2);
        for (budget, planner) in [
            (leanest, blocks),
            (leanest, Planner::Optimal),
            (leanest, Planner::Auto),
            (half, Planner::Segments(None)),
            (half, Planner::Optimal),
            (half, Planner::Auto),
        ] {
            let started = Instant::now();
            let plan = planned(&graph, planner, Some(budget));
            let share = |bytes: Bytes| bytes.0 as f64 / recorded.peak.0 as f64;
            println!(
                "{layers}, {}, {:.3}, {planner}, {:.3}, {:.3}x, {:.2?}, {:.1} s",
                graph.operations.len(),
                share(budget),
                share(plan.simulated.peak),
                plan.simulated.time.0 / recorded.time.0,
                run_again(&graph, &kinds, &plan),
                started.elapsed().as_secs_f64(),
            );
        }
    }
}
