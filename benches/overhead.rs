//! What the executor itself costs: 1,000 and 4,000 x Linear(10, 10), where layers are nearly free.
//!
//! The executor's own cost is its step's time less the plain loop's, less that of the forwards it runs again, per
//! layer. It must not grow with the depth.
//!
//! `cargo bench --bench overhead [-- --json]`

use std::time::Instant;

use burn::{
    backend::{Autodiff, Flex},
    module::Module,
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Distribution, Tensor, backend::Backend},
};
use rekindle::{Executor, Layer, Sequential, StepSeed};
use rekindle_plan::planner;

type B = Autodiff<Flex>;

const DEPTHS: [usize; 2] = [1000, 4000];
const SEGMENTS: [usize; 3] = [1, 2, 32];
const WIDTH: usize = 10;
const BATCH: usize = 4;
const ROUNDS: usize = 21;

#[derive(Module, Debug)]
struct Plain<B: Backend> {
    linear: Linear<B>,
}

impl<B: Backend> Layer<B> for Plain<B> {
    type Input = Tensor<B, 2>;
    type Output = Tensor<B, 2>;

    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        self.linear.forward(input)
    }

    fn draws_random(&self) -> bool {
        false
    }
}

fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    drop(work());
    started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let device = Default::default();
    let json = std::env::args().any(|argument| argument == "--json");
    let mut rows = Vec::new();
    for depth in DEPTHS {
        B::seed(&device, 1);
        let model = Sequential::new(
            (0..depth)
                .map(|_| Plain::<B> {
                    linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
                })
                .collect(),
        );
        let untracked = Sequential::new(
            model
                .layers()
                .iter()
                .map(|layer| layer.clone().no_grad())
                .collect::<Vec<_>>(),
        );
        let input = Tensor::<B, 2>::random([BATCH, WIDTH], Distribution::Default, &device);
        let loss = |output: Tensor<B, 2>| output.powf_scalar(2.0).mean();
        for segments in SEGMENTS {
            let schedule = planner::uniform(depth, segments).expect("in range");
            let again: usize = schedule.forward_counts().iter().sum::<usize>() - depth;
            let executor = Executor::new(schedule);
            let (mut plain, mut scheduled, mut forward) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                plain.push(seconds(|| {
                    let value = loss(model.forward(input.clone()));
                    GradientsParams::from_grads(value.backward(), &model)
                }));
                forward.push(seconds(|| untracked.forward(input.clone())));
                scheduled.push(seconds(|| {
                    executor
                        .step(&model, input.clone(), StepSeed::new(0, 0), loss)
                        .expect("the schedule fits")
                }));
            }
            let (plain, scheduled) = (median(plain), median(scheduled));
            let forward = median(forward) * again as f64 / depth as f64;
            let own = (scheduled - plain - forward) / depth as f64;
            rows.push((depth, segments, plain, scheduled, own));
        }
    }
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(depth, segments, plain, scheduled, own)| {
                serde_json::json!({
                    "layers": depth, "segments": segments, "plain_step_s": plain, "step_s": scheduled,
                    "own_cost_per_layer_s": own,
                })
            })
            .collect();
        println!("{:#}", serde_json::Value::from(rows));
        return;
    }
    println!(
        "n x Linear(10, 10), batch {BATCH}: the executor's own cost, median of {ROUNDS} steps"
    );
    println!(
        "{:>7} {:>9} {:>12} {:>12} {:>15}",
        "layers", "segments", "plain step", "step", "own per layer"
    );
    for (depth, segments, plain, scheduled, own) in rows {
        println!(
            "{depth:>7} {segments:>9} {:>9.2} ms {:>9.2} ms {:>12.2} µs",
            plain * 1e3,
            scheduled * 1e3,
            own * 1e6
        );
    }
}
