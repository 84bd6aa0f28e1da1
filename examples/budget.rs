//! How to choose a budget: what the plain step takes, what budgets cost in time, and what a run within one measures.
//!
//! `cargo run --release --example budget`

use std::time::Instant;

use burn::{
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::gelu},
};
use rekindle::record::Budget;
use rekindle_plan::{Bytes, graph::GraphPlanner};

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
    let model = Model {
        layers: (0..DEPTH).map(layer).collect(),
    };
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let batch = (input.clone(), input.flip([1]));
    let optimizer = AdamConfig::new().init();

    // Measured once, planned as often as you like.
    let mut step = rekindle::record(&model, &batch, loss)?
        .with_optimizer(&optimizer)
        .plain()?;
    println!("plain: predicted peak {}", step.plan().plain_peak);
    for budget in ["80%", "60%", "40%", "20%"] {
        match step.set_budget(budget, GraphPlanner::Auto) {
            Ok(()) => println!("{budget}: {}", step.plan()),
            // Says the smallest budget that works.
            Err(error) => println!("{budget}: {error}"),
        }
    }

    let (mut losses, mut plain_time) = (Vec::new(), None);
    for budget in [Budget::Bytes(Bytes::MAX), Budget::OfPlain(50.0)] {
        step.set_budget(budget, GraphPlanner::Auto)?;
        let (mut model, mut optimizer) = (model.clone(), optimizer.clone());
        let (mut peak, mut time) = (Bytes::ZERO, 0.0);
        for _ in 0..STEPS {
            let started = Instant::now();
            let output = step.run(&model, batch.clone())?;
            time += started.elapsed().as_secs_f64();
            model = optimizer.step(1e-3, model, output.gradients);
            losses.push(output.loss.into_scalar::<f32>());
            let update = Bytes(rekindle_alloc::peak() as u64);
            peak = peak.max(output.memory.peak_in_use_bytes).max(update);
        }
        let ratio = time / *plain_time.get_or_insert(time);
        let predicted = step.plan().predicted_peak;
        println!(
            "{STEPS} steps: predicted peak {predicted}, measured {peak}, {ratio:.2}x the plain time"
        );
        assert!(Some(peak) <= step.plan().budget);
    }
    println!("loss {:.5} -> {:.5}", losses[0], losses[losses.len() - 1]);
    Ok(())
}
