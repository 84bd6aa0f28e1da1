//! Data parallel training over MPI: each rank trains on its part of every batch, and the losses are those of one process
//! with the whole batch.
//!
//! ```text
//! cargo build --release --features mpi --example data_parallel
//! target/release/examples/data_parallel
//! mpirun -n 2 target/release/examples/data_parallel
//! ```
//!
//! An argument says how many steps.

use burn::{
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::activation::gelu,
};
use rekindle::reduce::{self, Reducer};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 16;
const WIDTH: usize = 64;
/// Samples of each step, of all ranks together.
const BATCH: usize = 2000;

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Linear>,
}

fn loss(model: &Model, (input, target): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
    let block = |x: Tensor<2>, layer: &Linear| x.clone() + gelu(layer.forward(x));
    let output = model.layers.iter().fold(input, block);
    (output - target).square().mean()
}

/// This rank's samples of a step: waves, and the same waves a little later.
fn batch(step: usize, world: &Reducer, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let samples = reduce::part(BATCH, world.rank(), world.ranks());
    let first = (step * BATCH) as i64;
    let samples = Tensor::<1, Int>::arange(
        first + samples.start as i64..first + samples.end as i64,
        device,
    );
    let places = Tensor::<1, Int>::arange(0..WIDTH as i64, device)
        .float()
        .unsqueeze::<2>();
    let speed = samples.float().unsqueeze_dim::<2>(1).sin() * 0.1 + 0.2;
    let phase = places * speed;
    (phase.clone().sin(), (phase + 0.5).sin())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = rekindle::mpi::world()?;
    let device = Device::flex().autodiff();
    device.seed(1 + world.rank() as u64);
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let model = Model {
        layers: (0..DEPTH).map(layer).collect(),
    };
    // Rank 0's model is everybody's.
    let mut model = reduce::broadcast_parameters(&world, model)?;
    let mut optimizer = AdamConfig::new().init();
    let samples = reduce::part(BATCH, world.rank(), world.ranks()).len();
    let steps = std::env::args()
        .nth(1)
        .map_or(Ok(20), |steps| steps.parse())?;

    let mut step = rekindle::record(&model, &batch(0, &world, &device), loss)?
        .with_optimizer(&optimizer)
        .with_reducer(world.clone())
        .within("60%")?;
    step.set_share(samples as f64 / BATCH as f64);
    let mut peak = Bytes::ZERO;
    for number in 0..steps {
        let output = step.run(&model, batch(number, &world, &device))?;
        model = optimizer.step(1e-3, model, output.gradients);
        let update = Bytes(rekindle_alloc::peak() as u64);
        peak = peak.max(output.memory.peak_in_use_bytes).max(update);
        if world.rank() == 0 {
            let loss = output.loss.into_scalar::<f32>();
            println!("step {number}: loss {loss}");
        }
    }
    let (rank, ranks, plan) = (world.rank(), world.ranks(), step.plan());
    // In one piece, as the ranks' lines come together.
    let said = format!("rank {rank} of {ranks}: {plan}; measured peak {peak}\n");
    eprint!("{said}");
    assert!(Some(peak) <= plan.budget);
    Ok(())
}
