//! A U-Net that removes noise, trained within 80% of its plain peak. Its skips reach across the whole network.
//!
//! `cargo run --release --example unet`

use burn::{
    nn::{
        GroupNorm, GroupNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        pool::{AvgPool2d, AvgPool2dConfig},
    },
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::gelu},
};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const BATCH: usize = 32;
const STEPS: usize = 12;

#[derive(Module, Debug)]
struct UNet {
    down: Vec<Conv2d>,
    up: Vec<Conv2d>,
    norms: Vec<GroupNorm>,
    shrink: AvgPool2d,
    head: Conv2d,
}

impl UNet {
    fn new(device: &Device) -> Self {
        let conv = |from, to| {
            let config = Conv2dConfig::new([from, to], [3, 3]);
            config.with_padding(PaddingConfig2d::Same).init(device)
        };
        let norm = |_| GroupNormConfig::new(2, 8).init(device);
        Self {
            down: vec![conv(1, 8), conv(8, 8), conv(8, 8)],
            up: vec![conv(16, 8), conv(16, 8), conv(16, 8)],
            norms: (0..3).map(norm).collect(),
            shrink: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            head: conv(8, 1),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<4> {
        let mut skips = Vec::new();
        for conv in &self.down {
            x = gelu(conv.forward(x));
            skips.push(x.clone());
            x = self.shrink.forward(x);
        }
        for ((conv, norm), skip) in self.up.iter().zip(&self.norms).zip(skips.into_iter().rev()) {
            let larger = x.repeat_dim(2, 2).repeat_dim(3, 2);
            x = gelu(norm.forward(conv.forward(Tensor::cat(vec![larger, skip], 1))));
        }
        self.head.forward(x)
    }
}

/// Images of one random patch, repeated, with noise and without.
fn batch(device: &Device) -> (Tensor<4>, Tensor<4>) {
    let patches = Tensor::<4>::random([BATCH, 1, 8, 8], Distribution::Normal(0.0, 1.0), device);
    let clean = patches.repeat_dim(2, 4).repeat_dim(3, 4);
    let noise = Tensor::random([BATCH, 1, 32, 32], Distribution::Normal(0.0, 0.5), device);
    (clean.clone() + noise, clean)
}

fn loss(model: &UNet, (noisy, clean): (Tensor<4>, Tensor<4>)) -> Tensor<1> {
    (model.forward(noisy) - clean).square().mean()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = UNet::new(&device);
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
