//! A deep stack of linear layers: the plain step, 8 checkpointed segments, and a budget of about as much. Gradients are
//! the same bit for bit, and so are losses.
//!
//! `cargo run --release --example deep_linear`

use burn::{
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::gelu},
};
use rekindle_plan::Bytes;

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
    let mut last_losses = Vec::new();
    for name in ["plain", "8 segments", "budget"] {
        device.seed(1);
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
        let mut model = Model {
            layers: (0..DEPTH).map(layer).collect(),
        };
        let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
        let batch = (input.clone(), input.flip([1]));
        let mut optimizer = AdamConfig::new().init();

        let recorded = rekindle::record(&model, &batch, loss)?.with_optimizer(&optimizer);
        let step = match name {
            "plain" => recorded.plain()?,
            "8 segments" => recorded.segments(8)?,
            _ => recorded.within("45%")?,
        };
        let (mut losses, mut peak) = (Vec::new(), Bytes::ZERO);
        for _ in 0..STEPS {
            let output = step.run(&model, batch.clone())?;
            model = optimizer.step(1e-3, model, output.gradients);
            losses.push(output.loss.into_scalar::<f32>());
            let update = Bytes(rekindle_alloc::peak() as u64);
            peak = peak.max(output.memory.peak_in_use_bytes).max(update);
        }
        let plan = step.plan();
        println!("{name}: {plan}; measured peak {peak}");
        println!("{name}: loss {:.5} -> {:.5}", losses[0], losses[STEPS - 1]);
        assert!(plan.budget.is_none_or(|budget| peak <= budget));
        last_losses.push(losses[STEPS - 1]);
    }
    assert!(last_losses.iter().all(|&loss| loss == last_losses[0]));
    Ok(())
}
