//! A deep convolution stack with batch normalisation and dropout, by the one-call form that people who come from
//! PyTorch's `checkpoint_sequential` look for.
//!
//! `cargo run --release --example deep_conv`

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
    },
    optim::SgdConfig,
    tensor::{Device, Distribution, Int, Tensor, activation::relu},
};
use rekindle::{Layer, Sequential, checkpoint_sequential};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const DEPTH: usize = 16;
const CHANNELS: usize = 16;
const BATCH: usize = 16;

/// Dropout draws the same mask when the block runs again, and the running statistics move once a step.
#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    dropout: Dropout,
}

impl Layer for Block {
    type Input = Tensor<4>;
    type Output = Tensor<4>;

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let inner = relu(self.norm.forward(self.conv.forward(input.clone())));
        input + self.dropout.forward(inner)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    for segments in [1, 2, 4, 8] {
        device.seed(1);
        let block = |_| Block {
            conv: Conv2dConfig::new([CHANNELS, CHANNELS], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(&device),
            norm: BatchNormConfig::new(CHANNELS).init(&device),
            dropout: DropoutConfig::new(0.1).init(),
        };
        let mut model = Sequential::new((0..DEPTH).map(block).collect());
        let images = Tensor::<4>::random([BATCH, CHANNELS, 28, 28], Distribution::Default, &device);
        let labels = Tensor::<1, Int>::arange(0..BATCH as i64, &device);
        let cross_entropy = CrossEntropyLossConfig::new().init(&device);
        let mut optimizer = SgdConfig::new().init();
        let mut loss = 0.0;
        rekindle_alloc::reset_peak();
        for _ in 0..3 {
            let output = checkpoint_sequential(&model, segments, images.clone(), |output| {
                let logits = output.mean_dim(3).mean_dim(2).reshape([BATCH, CHANNELS]);
                cross_entropy.forward(logits, labels.clone())
            })?;
            loss = output.loss.into_scalar::<f32>();
            model = optimizer.step(0.1, model, output.gradients);
        }
        let peak = rekindle_alloc::peak() as f64 / f64::from(1 << 20);
        println!("{segments} segments: peak {peak:.1} MiB, loss after 3 steps {loss:.6}");
    }
    Ok(())
}
