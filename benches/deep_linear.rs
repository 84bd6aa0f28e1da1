//! 64 x (Linear 512 + GELU) at batch 2,048 on the CPU: peak memory and step time of checkpointed steps against a
//! hand-written burn loop, side by side in one process.
//!
//! `cargo bench --bench deep_linear [-- --json]`

use std::time::Instant;

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Tensor, activation::gelu},
};
use rekindle::{Layer, Sequential, checkpoint_sequential};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 64;
const WIDTH: usize = 512;
const BATCH: usize = 2048;
const ROUNDS: usize = 5;
const SEGMENTS: [usize; 5] = [2, 4, 8, 16, 32];

#[derive(Module, Debug)]
struct Block {
    linear: Linear,
}

impl Layer for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        gelu(self.linear.forward(input))
    }
}

/// Peak bytes above what is held before the step, and seconds.
fn measure<T>(step: impl FnOnce() -> T) -> (u64, f64) {
    let base = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    let started = Instant::now();
    drop(step());
    let seconds = started.elapsed().as_secs_f64();
    ((rekindle_alloc::peak() - base) as u64, seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = Sequential::new(
        (0..DEPTH)
            .map(|_| Block {
                linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
            })
            .collect(),
    );
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let loss = |output: Tensor<2>| output.powf_scalar(2.0).mean();

    let mut runs = vec![Vec::new(); SEGMENTS.len() + 1];
    for round in 0..=ROUNDS {
        let plain = measure(|| {
            let value = loss(model.forward(input.clone()));
            GradientsParams::from_grads(value.backward(), &model)
        });
        let mut row = vec![plain];
        for segments in SEGMENTS {
            row.push(measure(|| {
                checkpoint_sequential(&model, segments, input.clone(), loss).expect("in range")
            }));
        }
        // The first round warms the allocator and the thread pool.
        if round > 0 {
            for (runs, measured) in runs.iter_mut().zip(row) {
                runs.push(measured);
            }
        }
    }

    let plain_peak = runs[0][0].0;
    let rows: Vec<_> = runs
        .iter()
        .enumerate()
        .map(|(index, measured)| {
            let peak = measured.iter().map(|run| run.0).max().unwrap_or(0);
            let seconds = median(measured.iter().map(|run| run.1).collect());
            // Machines drift: the ratio is taken within each round.
            let ratios = measured
                .iter()
                .zip(&runs[0])
                .map(|(run, plain)| run.1 / plain.1);
            let segments = index.checked_sub(1).map(|index| SEGMENTS[index]);
            (segments, peak, seconds, median(ratios.collect()))
        })
        .collect();

    if std::env::args().any(|argument| argument == "--json") {
        let rows: Vec<_> = rows
            .iter()
            .map(|(segments, peak, seconds, ratio)| {
                serde_json::json!({
                    "segments": segments, "peak_above_parameters_bytes": peak, "step_s": seconds, "time_ratio": ratio,
                })
            })
            .collect();
        println!("{:#}", serde_json::Value::from(rows));
        return;
    }
    println!(
        "64 x (Linear 512 + GELU), batch 2,048: peak above parameters, median of {ROUNDS} steps"
    );
    println!(
        "{:>9} {:>12} {:>8} {:>9} {:>8}",
        "segments", "peak", "of plain", "step", "x plain"
    );
    for (segments, peak, seconds, ratio) in rows {
        println!(
            "{:>9} {:>9.1} MB {:>7.1}% {:>7.2} s {:>7.2}x",
            segments.map_or("plain".into(), |segments| segments.to_string()),
            peak as f64 / 1e6,
            100.0 * peak as f64 / plain_peak as f64,
            seconds,
            ratio,
        );
    }
}
