//! An LSTM, whose weights are shared by all time steps, trained within 70% of its plain peak.
//!
//! `cargo run --release --example recurrent`

use burn::{
    nn::{
        Linear, LinearConfig,
        lstm::{Lstm, LstmConfig},
    },
    optim::AdamConfig,
    prelude::*,
    tensor::Distribution,
};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const BATCH: usize = 1024;
const LENGTH: usize = 12;
const FEATURES: usize = 4;
const WIDTH: usize = 32;
const STEPS: usize = 15;

#[derive(Module, Debug)]
struct Recurrent {
    cell: Lstm,
    head: Linear,
}

impl Recurrent {
    fn new(device: &Device) -> Self {
        Self {
            cell: LstmConfig::new(FEATURES, WIDTH, true).init(device),
            head: LinearConfig::new(WIDTH, FEATURES).init(device),
        }
    }

    fn forward(&self, sequence: Tensor<3>) -> Tensor<2> {
        let (all, _) = self.cell.forward(sequence, None);
        let last = all.narrow(1, LENGTH - 1, 1).flatten::<2>(1, 2);
        self.head.forward(last)
    }
}

/// Sequences whose features drift at constant rates.
fn batch(device: &Device) -> (Tensor<3>, Tensor<2>) {
    let rates = Tensor::random([BATCH, FEATURES], Distribution::Normal(0.0, 1.0), device);
    let shape = [BATCH, LENGTH, FEATURES];
    let noise = Tensor::random(shape, Distribution::Normal(0.0, 0.5), device);
    (noise + rates.clone().reshape([BATCH, 1, FEATURES]), rates)
}

fn loss(model: &Recurrent, (sequence, rates): (Tensor<3>, Tensor<2>)) -> Tensor<1> {
    (model.forward(sequence) - rates).square().mean()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Recurrent::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let first = batch(&device);
    let step = rekindle::record(&model, &first, loss)?
        .with_optimizer(&optimizer)
        .within("70%")?;
    let plan = step.plan();

    let (mut losses, mut peak) = (Vec::new(), Bytes::ZERO);
    for _ in 0..STEPS {
        let output = step.run(&model, batch(&device))?;
        model = optimizer.step(1e-2, model, output.gradients);
        losses.push(output.loss.into_scalar::<f32>());
        let update = Bytes(rekindle_alloc::peak() as u64);
        peak = peak.max(output.memory.peak_in_use_bytes).max(update);
    }

    println!("{plan}; measured peak {peak}");
    println!("loss {:.3} -> {:.3}", losses[0], losses[STEPS - 1]);
    assert!(Some(peak) <= plan.budget && losses[STEPS - 1] < losses[0]);
    Ok(())
}
