//! The graph planner against an exhaustive search over small graphs: how far from the optimum it ends.
//!
//! The optimum may run the operations in any order, with any recomputation. `distance_of_a_thousand_graphs` prints how
//! many plans are no optimum.
use crate::graph_support::exhaustive::{least_time, smallest_peak};
use crate::graph_support::graphs::{Sequence, any, training};
use crate::graph_support::leanest;
use rekindle_plan::graph::{Program, plan_graph, simulate};
use rekindle_plan::{Bytes, Graph, Request};

/// How many plans are as good as the optimum, and how far the others are from it.
#[derive(Debug, Default)]
struct Distance {
    graphs: usize,
    /// Graphs whose leanest program was found, and the worst ratio of peaks.
    leanest: usize,
    worst_peak: f64,
    /// Budgets that some program fits, those where one was found, and those where an optimal one was.
    budgets: usize,
    fitting: usize,
    optimal: usize,
    worst_time: f64,
}

impl Distance {
    /// Adds a graph where recomputation can save something, at four budgets from its smallest to below its largest.
    fn add(&mut self, graph: &Graph) {
        graph.validate().unwrap();
        let recorded = Program::recorded(graph).unwrap().without_dead_runs(graph);
        let most = simulate(graph, &recorded).peak.0;
        let least = smallest_peak(graph, most);
        if least == most {
            return;
        }
        let leanest = leanest(graph).simulated;
        assert!(
            leanest.peak.0 >= least,
            "the exhaustive search missed a program"
        );
        self.graphs += 1;
        self.leanest += usize::from(leanest.peak.0 == least);
        self.worst_peak = self.worst_peak.max(leanest.peak.0 as f64 / least as f64);
        for part in 0..4 {
            let budget = least + (most - least) * part / 4;
            let best = least_time(graph, budget).unwrap() as f64;
            self.budgets += 1;
            let Ok(plan) = plan_graph(graph, &Request::within(Bytes(budget))) else {
                continue;
            };
            let time = plan.simulated.time.0;
            assert!(plan.simulated.peak.0 <= budget);
            assert!(time >= best, "the exhaustive search missed a program");
            self.fitting += 1;
            self.optimal += usize::from(time == best);
            self.worst_time = self.worst_time.max(time / best.max(1.0));
        }
    }
}

fn of_any(graphs: usize, operations: usize) -> Distance {
    let mut random = Sequence(1);
    let mut distance = Distance::default();
    (0..graphs).for_each(|_| distance.add(&any(&mut random, operations)));
    distance
}

fn of_training(graphs: usize, layers: usize) -> Distance {
    let mut random = Sequence(2);
    let mut distance = Distance::default();
    (0..graphs).for_each(|_| distance.add(&training(&mut random, layers)));
    distance
}

#[test]
fn nearly_all_plans_of_small_graphs_are_optimal() {
    for distance in [of_any(60, 8), of_training(40, 4)] {
        assert!(distance.budgets > 60, "{distance:?}");
        assert_eq!(distance.fitting, distance.budgets, "{distance:?}");
        assert_eq!(distance.leanest, distance.graphs, "{distance:?}");
        assert!(
            distance.optimal * 100 >= distance.fitting * 99,
            "{distance:?}"
        );
        assert!(distance.worst_time <= 1.2, "{distance:?}");
    }
}

/// `cargo test --release -p rekindle-plan --test graphs exhaustive -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes; prints the numbers that the documentation states"]
fn distance_of_a_thousand_graphs() {
    println!("any graphs of 8 operations: {:?}", of_any(1000, 8));
    println!("training steps of 8 operations: {:?}", of_training(1000, 4));
    println!("training steps of 10 operations: {:?}", of_training(200, 5));
}
