//! The graph planner against an exhaustive search over small graphs.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod graph_support;

use graph_support::exhaustive::{least_time, smallest_peak};
use graph_support::graphs::{Sequence, any, training};
use rekindle_plan::graph::{GraphRequest, Program, plan_graph, simulate, smallest_program};
use rekindle_plan::{Bytes, Graph};

#[derive(Default, Debug)]
struct Distance {
    cases: usize,
    optimal: usize,
    infeasible: usize,
    worst: f64,
    extra: f64,
    smallest: usize,
    graphs: usize,
    worst_smallest: f64,
}

fn compare(graph: &Graph, distance: &mut Distance) {
    let recorded = simulate(graph, &Program::recorded(graph).unwrap());
    let recorded_peak = simulate(
        graph,
        &Program::recorded(graph).unwrap().without_dead_runs(graph),
    )
    .peak;
    let least = smallest_peak(graph, recorded.peak.0);
    if recorded_peak.0 <= least {
        return;
    }
    let recorded = rekindle_plan::graph::Simulated {
        peak: recorded_peak,
        ..recorded
    };
    distance.graphs += 1;
    let (_, found) = smallest_program(graph).unwrap();
    if found.peak.0 > least {
        eprintln!("least {least} found {}", found.peak.0);
        for (n, o) in graph.operations.iter().enumerate() {
            let name = |t: &rekindle_plan::TensorId| {
                let x = graph.tensors[t.index()];
                format!(
                    "{}{}:{}",
                    t.0,
                    if x.given {
                        "g"
                    } else if x.output {
                        "o"
                    } else {
                        ""
                    },
                    x.bytes.0
                )
            };
            eprintln!(
                "  {n}: {:?} -> {:?} temp {} {} {:?} {}",
                o.inputs.iter().map(name).collect::<Vec<_>>(),
                o.outputs.iter().map(name).collect::<Vec<_>>(),
                o.temp_bytes.0,
                if o.view { "view" } else { "" },
                o.in_place,
                if o.repeatable { "" } else { "draw" }
            );
        }
    }
    distance.smallest += usize::from(found.peak.0 == least);
    distance.worst_smallest = distance
        .worst_smallest
        .max(found.peak.0 as f64 / least as f64);
    for part in 0..4 {
        let budget = least + (recorded.peak.0 - least) * part / 4;
        let best = least_time(graph, budget).unwrap();
        distance.cases += 1;
        match plan_graph(graph, &GraphRequest::within(Bytes(budget))) {
            Ok(plan) => {
                assert!(plan.simulated.peak.0 <= budget);
                assert!(plan.simulated.time.0 >= best as f64);
                let ratio = plan.simulated.time.0 / best.max(1) as f64;
                distance.optimal += usize::from(plan.simulated.time.0 == best as f64);
                distance.worst = distance.worst.max(ratio);
                distance.extra += ratio - 1.0;
            }
            Err(_) => distance.infeasible += 1,
        }
    }
}

#[test]
fn distance_on_any_graph() {
    let mut random = Sequence(1);
    let mut distance = Distance::default();
    for _ in 0..60 {
        let graph = any(&mut random, 8);
        graph.validate().unwrap();
        compare(&graph, &mut distance);
    }
    eprintln!("any {distance:?}");
}

#[test]
fn distance_on_training_steps() {
    let mut random = Sequence(2);
    let mut distance = Distance::default();
    for _ in 0..60 {
        let graph = training(&mut random, 4);
        graph.validate().unwrap();
        compare(&graph, &mut distance);
    }
    eprintln!("training {distance:?}");
}
