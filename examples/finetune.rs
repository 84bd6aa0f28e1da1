//! Small adapters beside a frozen trunk, trained within 70% of the plain peak. The trunk gets no gradients.
//!
//! `cargo run --release --example finetune`

use burn::{
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::gelu},
};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const BATCH: usize = 1024;
const WIDTH: usize = 64;
const DEPTH: usize = 8;
const RANK: usize = 4;
const CLASSES: usize = 4;
const STEPS: usize = 12;

#[derive(Module, Debug)]
struct Adapted {
    trunk: Vec<Linear>,
    down: Vec<Linear>,
    up: Vec<Linear>,
    head: Linear,
}

impl Adapted {
    fn new(device: &Device) -> Self {
        let layers = |from, to| (0..DEPTH).map(move |_| LinearConfig::new(from, to).init(device));
        Self {
            trunk: layers(WIDTH, WIDTH).map(Linear::no_grad).collect(),
            down: layers(WIDTH, RANK).collect(),
            up: layers(RANK, WIDTH).collect(),
            head: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for ((trunk, down), up) in self.trunk.iter().zip(&self.down).zip(&self.up) {
            let adapter = up.forward(down.forward(x.clone()));
            x = x.clone() + gelu(trunk.forward(x) + adapter);
        }
        self.head.forward(x)
    }
}

/// Noise whose first features carry the class.
fn batch(device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let classes = Distribution::Uniform(0.0, CLASSES as f64);
    let labels = Tensor::<1, Int>::random([BATCH], classes, device);
    let signal = labels.clone().one_hot::<2>(CLASSES).float() * 2.0;
    let shape = [BATCH, WIDTH - CLASSES];
    let noise = Tensor::random(shape, Distribution::Normal(0.0, 1.0), device);
    (Tensor::cat(vec![signal, noise], 1), labels)
}

fn loss(model: &Adapted, (inputs, labels): (Tensor<2>, Tensor<1, Int>)) -> Tensor<1> {
    let logits = model.forward(inputs);
    CrossEntropyLossConfig::new()
        .init(&logits.device())
        .forward(logits, labels)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Adapted::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let first = batch(&device);
    let step = rekindle::record(&model, &first, loss)?
        .with_optimizer(&optimizer)
        .within("70%")?;
    let plan = step.plan();

    let (mut losses, mut peak) = (Vec::new(), Bytes::ZERO);
    for _ in 0..STEPS {
        let output = step.run(&model, batch(&device))?;
        let trains = |layer: &Linear| output.gradients.get::<2>(layer.weight.id).is_some();
        assert!(!model.trunk.iter().any(trains));
        model = optimizer.step(3e-3, model, output.gradients);
        losses.push(output.loss.into_scalar::<f32>());
        let update = Bytes(rekindle_alloc::peak() as u64);
        peak = peak.max(output.memory.peak_in_use_bytes).max(update);
    }

    println!("{plan}; measured peak {peak}");
    println!("loss {:.3} -> {:.3}", losses[0], losses[STEPS - 1]);
    assert!(Some(peak) <= plan.budget && losses[STEPS - 1] < losses[0]);
    Ok(())
}
