//! How long a plan of a graph takes: residual layers of eight operations, and a transformer of 48
//! layers, at half of the recorded peak.
//!
//! `cargo bench -p rekindle-plan --bench graph`.
#![expect(
    clippy::unwrap_used,
    reason = "a bench that cannot plan has nothing to measure"
)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use graph_support::graphs::{Sequence, residual, transformer};
use rekindle_plan::Bytes;
use rekindle_plan::graph::{GraphPlanner, GraphRequest, Program, plan_graph, simulate};

#[path = "../tests/graph_support/mod.rs"]
mod graph_support;

fn graphs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("graph");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5));
    let residual = |layers| residual(&mut Sequence(3), layers, 8);
    for graph in [residual(4), residual(40), residual(400), transformer(48).0] {
        let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
        for (name, planner) in [
            ("optimal", GraphPlanner::Optimal),
            ("auto", GraphPlanner::Auto),
        ] {
            let request = GraphRequest {
                planner,
                ..GraphRequest::within(Bytes(recorded.peak.0 / 2))
            };
            let name = BenchmarkId::new(name, graph.operations.len());
            group.bench_function(name, |bencher| {
                bencher.iter(|| plan_graph(black_box(&graph), &request).unwrap())
            });
        }
    }
    group.finish();
}

criterion_group!(benches, graphs);
criterion_main!(benches);
