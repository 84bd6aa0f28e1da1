//! A stack of one's own, trained within a budget: measure it, plan, run the plan.
//!
//! `cargo run --release --example budget`

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
    profile::Profiler,
    train::settings::OptimizerSettings,
};
use rekindle_plan::{Bytes, PlanRequest};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 32;
const WIDTH: usize = 128;
const BATCH: usize = 1024;
const STEPS: u64 = 10;
/// Half of what the plain run takes.
const BUDGET: Bytes = Bytes(22 << 20);

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
    device.seed(1);
    let block = |_| Block {
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
    };
    let model = Sequential::new((0..DEPTH).map(block).collect());
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let target = input.clone().flip([1]);
    let loss = |output: Tensor<2>| (output - target.clone()).powf_scalar(2.0).mean();

    let profiler = Profiler {
        device: &device,
        meter: &*meter,
        optimizer: OptimizerSettings::Adam {
            betas: [0.9, 0.999],
            epsilon: 1e-5,
            weight_decay: 0.0,
        },
        clip: None,
    };
    let (measured, mut model) = profiler.measure(model, &input, loss);
    let plain = measured.plain()?;
    let plan = measured.plan(&PlanRequest::within(BUDGET))?;
    println!(
        "plan `{}`: {:.2}x the plain step, peak {} instead of {}, budget {BUDGET}",
        plan.planner,
        plan.step.0 / plain.step.0,
        plan.peak,
        plain.peak,
    );

    let executor = Executor::new(plan.schedule).planned_for(&input);
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    meter.start_interval();
    for step in 0..STEPS {
        let output = executor.step(&model, input.clone(), StepSeed::new(0, step), loss)?;
        model = optimizer.step(1e-3, model, output.gradients);
        losses.push(output.loss.into_scalar::<f32>());
    }
    let peak = meter.read().peak_in_use_bytes;
    println!(
        "{STEPS} steps: loss {:.5} -> {:.5}, measured peak {peak}",
        losses[0],
        losses[losses.len() - 1],
    );
    if peak > BUDGET {
        return Err(format!("the budget of {BUDGET} was passed").into());
    }
    Ok(())
}
