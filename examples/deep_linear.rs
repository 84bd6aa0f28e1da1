//! A deep stack of linear layers, first trained plainly and then in 8 checkpointed segments.
//!
//! `cargo run --release --example deep_linear`

use std::sync::Arc;

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    tensor::{Device, Distribution, Tensor, activation::gelu},
};
use rekindle::{
    Executor, Layer, Sequential, StepSeed,
    meter::{HostMeter, Meter},
};
use rekindle_plan::planner;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 64;
const WIDTH: usize = 128;
const BATCH: usize = 2048;

/// One stage: any burn module with a forward.
#[derive(Module, Debug)]
struct Block {
    linear: Linear,
}

impl Layer for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input.clone() + gelu(self.linear.forward(input)) * 0.1
    }

    fn draws_random(&self) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    let meter: Arc<dyn Meter> = Arc::new(HostMeter::new()?);
    for segments in [1, 8] {
        device.seed(1);
        let block = |_| Block {
            linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
        };
        let mut model = Sequential::new((0..DEPTH).map(block).collect());
        let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
        let target = input.clone().flip([1]);

        let executor = Executor::new(planner::uniform(DEPTH, segments)?);
        let mut optimizer = AdamConfig::new().init();
        let (mut losses, mut peak) = (Vec::new(), 0);
        for step in 0..10 {
            meter.start_interval();
            let output =
                executor.step(&model, input.clone(), StepSeed::new(0, step), |output| {
                    (output - target.clone()).powf_scalar(2.0).mean()
                })?;
            model = optimizer.step(1e-3, model, output.gradients);
            losses.push(output.loss.into_scalar::<f32>());
            peak = peak.max(meter.read().peak_in_use_bytes.0);
        }
        println!(
            "{segments} segments: peak {:.1} MiB, loss {:.5} -> {:.5}",
            peak as f64 / f64::from(1 << 20),
            losses[0],
            losses[losses.len() - 1],
        );
    }
    Ok(())
}
