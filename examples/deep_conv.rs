//! A deep convolution stack with batch normalisation and dropout. Every plan gives the loss of the hand-written burn
//! loop, bit for bit: dropout draws once, and running statistics move once a step.
//!
//! `cargo run --release --example deep_conv`

use burn::{
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
    },
    optim::{GradientsParams, SgdConfig},
    prelude::*,
    tensor::{Distribution, activation::relu},
};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 8;
const CHANNELS: usize = 16;
const BATCH: usize = 16;
const STEPS: usize = 3;

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
}

impl Model {
    fn new(device: &Device) -> Self {
        let conv = Conv2dConfig::new([CHANNELS, CHANNELS], [3, 3]);
        let conv = conv.with_padding(PaddingConfig2d::Same);
        let block = |_| Block {
            conv: conv.init(device),
            norm: BatchNormConfig::new(CHANNELS).init(device),
            dropout: DropoutConfig::new(0.1).init(),
        };
        Self {
            blocks: (0..DEPTH).map(block).collect(),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for block in &self.blocks {
            let inner = relu(block.norm.forward(block.conv.forward(x.clone())));
            x = x + block.dropout.forward(inner);
        }
        x.mean_dim(3).mean_dim(2).flatten(1, 3)
    }
}

fn loss(model: &Model, (images, labels): (Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
    let logits = model.forward(images);
    let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
    cross_entropy.forward(logits, labels)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    let mut losses = Vec::new();
    for budget in ["none", "75%", "50%"] {
        device.seed(1);
        let mut model = Model::new(&device);
        // Parameters are drawn at their first use: before the first mask is.
        drop(model.valid());
        let images = Tensor::<4>::random([BATCH, CHANNELS, 28, 28], Distribution::Default, &device);
        let batch = (images, Tensor::arange(0..BATCH as i64, &device));
        let (mut optimizer, mut last) = (SgdConfig::new().init(), 0.0);
        if budget == "none" {
            for _ in 0..STEPS {
                let value = loss(&model, batch.clone());
                let gradients = GradientsParams::from_grads(value.backward(), &model);
                model = optimizer.step(0.1, model, gradients);
                last = value.into_scalar::<f32>();
            }
        } else {
            let recorded = rekindle::record(&model, &batch, loss)?.with_optimizer(&optimizer);
            let step = recorded.within(budget)?;
            for _ in 0..STEPS {
                let output = step.run(&model, batch.clone())?;
                model = optimizer.step(0.1, model, output.gradients);
                last = output.loss.into_scalar::<f32>();
            }
            println!("{}", step.plan());
        }
        println!("budget {budget}: loss after {STEPS} steps {last:.6}");
        losses.push(last);
    }
    assert!(losses.iter().all(|&loss| loss == losses[0]), "{losses:?}");
    Ok(())
}
