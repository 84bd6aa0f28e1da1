//! A convolutional network trained within 80% of its plain peak; ranks change from 4 to 2, batch norm keeps statistics.
//!
//! `cargo run --release --example vgg`

use burn::{
    nn::{
        BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::relu},
};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const BATCH: usize = 32;
const STEPS: usize = 12;

#[derive(Module, Debug)]
struct Vgg {
    convs: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
    pool: MaxPool2d,
    head: Linear,
}

impl Vgg {
    fn new(device: &Device) -> Self {
        let channels = [3, 8, 8, 8, 8, 8, 8];
        let conv = |pair: &[usize]| {
            let config = Conv2dConfig::new([pair[0], pair[1]], [3, 3]);
            config.with_padding(PaddingConfig2d::Same).init(device)
        };
        let norm = |&to: &usize| BatchNormConfig::new(to).init(device);
        Self {
            convs: channels.windows(2).map(conv).collect(),
            norms: channels[1..].iter().map(norm).collect(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            head: LinearConfig::new(8 * 8 * 8, 3).init(device),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for (place, (conv, norm)) in self.convs.iter().zip(&self.norms).enumerate() {
            x = relu(norm.forward(conv.forward(x)));
            if place % 3 == 2 {
                x = self.pool.forward(x);
            }
        }
        self.head.forward(x.flatten::<2>(1, 3))
    }
}

/// Noise, with one of three colours added: the class.
fn batch(device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let labels = Tensor::<1, Int>::random([BATCH], Distribution::Uniform(0.0, 3.0), device);
    let colour = labels.clone().one_hot::<2>(3).float();
    let colour = colour.reshape([BATCH, 3, 1, 1]);
    let noise = Tensor::random([BATCH, 3, 32, 32], Distribution::Normal(0.0, 1.0), device);
    (noise + colour, labels)
}

fn loss(model: &Vgg, (images, labels): (Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
    let logits = model.forward(images);
    let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
    cross_entropy.forward(logits, labels)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Vgg::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let first = batch(&device);
    let step = rekindle::record(&model, &first, loss)?
        .with_optimizer(&optimizer)
        .within("80%")?;
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
