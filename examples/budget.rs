//! How to choose a budget: what the plain step takes, what budgets cost in time, and what a run within one measures.
//!
//! `cargo run --release --example budget`

use std::time::{Duration, Instant};

use burn::{
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::gelu},
};
use rekindle_plan::{Bytes, Planner};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 32;
const WIDTH: usize = 128;
const BATCH: usize = 1024;
const STEPS: usize = 5;

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Linear>,
}

impl Model {
    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let block = |x: Tensor<2>, layer: &Linear| x.clone() + gelu(layer.forward(x)) * 0.1;
        self.layers.iter().fold(input, block)
    }
}

fn loss(model: &Model, (input, target): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
    (model.forward(input) - target).square().mean()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let mut model = Model {
        layers: (0..DEPTH).map(layer).collect(),
    };
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let batch = (input.clone(), input.flip([1]));
    let mut optimizer = AdamConfig::new().init();

    // Measured once, planned as often as you like.
    let mut step = rekindle::record(&model, &batch, loss)?
        .with_optimizer(&optimizer)
        .plain()?;
    println!("plain: predicted peak {}", step.plan().plain_peak);
    let started = Instant::now();
    for _ in 0..STEPS {
        step.run(&model, batch.clone())?;
    }
    let plain_time = started.elapsed();
    for budget in ["80%", "60%", "40%", "20%"] {
        match step.set_budget(budget, Planner::Auto) {
            Ok(()) => println!("{budget}: {}", step.plan()),
            // Says the smallest budget that works.
            Err(error) => println!("{budget}: {error}"),
        }
    }

    step.set_budget("50%", Planner::Auto)?;
    let plan = step.plan();
    println!("50%: {plan}");
    let (mut losses, mut peak, mut time) = (Vec::new(), Bytes::ZERO, Duration::ZERO);
    for _ in 0..STEPS {
        let started = Instant::now();
        let output = step.run(&model, batch.clone())?;
        time += started.elapsed();
        model = optimizer.step(1e-3, model, output.gradients);
        losses.push(output.loss.into_scalar::<f32>());
        let update = Bytes(rekindle_alloc::peak() as u64);
        peak = peak.max(output.memory.peak_in_use_bytes).max(update);
    }
    println!("{STEPS} steps: measured peak {peak}, {time:.1?}; plain steps took {plain_time:.1?}");
    println!("loss {:.5} -> {:.5}", losses[0], losses[STEPS - 1]);
    assert!(Some(peak) <= plan.budget && losses[STEPS - 1] < losses[0]);
    Ok(())
}
