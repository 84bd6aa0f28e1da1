//! How long `optimal` takes: different stages and repeating ones, at half of the plain peak and 500 slots.
//!
//! `cargo bench -p rekindle-plan --bench optimal`. The two chains of 1,000 stages take minutes for all their samples
//! and are left out unless asked for with the environment variable `REKINDLE_BENCH_LARGE`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rekindle_plan::{
    Bytes, Chain, LossCost, OptimizerCost, PlanRequest, PlannerKind, Seconds, Stage, plan, planner,
    simulate,
};

/// A fixed sequence of numbers below `bound`: the bench must measure the same chain every time.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// `stages` stages, of which `kinds` differ; the others repeat them in turn.
fn chain(stages: usize, kinds: usize) -> Chain {
    let mut random = Sequence(7);
    let kinds: Vec<Stage> = (0..kinds)
        .map(|_| {
            let output = 1_000_000 + random.below(4_000_000);
            let temp = random.below(2_000_000);
            Stage {
                forward_s: Seconds(1e-3 + random.below(1000) as f64 * 1e-5),
                backward_s: Seconds(2e-3 + random.below(1000) as f64 * 2e-5),
                output_bytes: Bytes(output),
                saved_bytes: Bytes(output + random.below(8_000_000)),
                forward_temp_bytes: Bytes(temp),
                tracked_temp_bytes: Bytes(temp),
                backward_temp_bytes: Bytes(random.below(3_000_000)),
                grad_bytes: Bytes(random.below(200_000)),
                ..Stage::default()
            }
        })
        .collect();
    Chain {
        input_bytes: Bytes(3_000_000),
        input_grad: false,
        fixed_bytes: Bytes(100_000_000),
        stages: kinds.iter().cycle().take(stages).cloned().collect(),
        loss: LossCost::default(),
        optimizer: OptimizerCost::default(),
    }
}

fn half_of_plain(chain: &Chain) -> Bytes {
    let plain =
        planner::none(chain.stages.len()).and_then(|schedule| Ok(simulate(chain, &schedule)?));
    Bytes(plain.map_or(0, |run| (run.peak - chain.resident_bytes()).0 / 2)) + chain.resident_bytes()
}

fn optimal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("optimal");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5));
    let mut sizes = vec![(30, 30), (100, 100), (300, 300), (300, 12)];
    if std::env::var_os("REKINDLE_BENCH_LARGE").is_some() {
        sizes.extend([(1000, 12), (1000, 1000)]);
    }
    for (stages, kinds) in sizes {
        let chain = chain(stages, kinds);
        let request = PlanRequest {
            planner: PlannerKind::Optimal,
            budget: Some(half_of_plain(&chain)),
            ..PlanRequest::default()
        };
        let name = BenchmarkId::new(format!("{kinds} kinds"), stages);
        group.bench_function(name, |bencher| {
            bencher.iter(|| plan(black_box(&chain), &request))
        });
    }
    group.finish();
}

criterion_group!(benches, optimal);
criterion_main!(benches);
