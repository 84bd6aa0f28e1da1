//! A training loop of one's own on a recorded step: gradient accumulation, clipping, a learning rate schedule,
//! validation and a snapshot are the same lines as with burn's backward pass.
//!
//! `cargo run --release --example custom_loop`

use burn::{
    grad_clipping::GradientClippingConfig,
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::activation::gelu,
};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const VOCAB: usize = 64;
const WIDTH: usize = 64;
const DEPTH: usize = 12;
const BATCH: usize = 16;
const LENGTH: usize = 64;
const STEPS: usize = 12;
/// Parts of a batch, whose gradients are added up for one update.
const PARTS: usize = 2;

#[derive(Module, Debug)]
struct Model {
    embedding: Embedding,
    layers: Vec<Linear>,
    head: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        Self {
            embedding: EmbeddingConfig::new(VOCAB, WIDTH).init(device),
            layers: (0..DEPTH).map(layer).collect(),
            head: LinearConfig::new(WIDTH, VOCAB).init(device),
        }
    }
}

type Batch = (Tensor<2, Int>, Tensor<2, Int>);

/// Counting sequences, and their next tokens: one or two more.
fn batch(place: usize, device: &Device) -> Batch {
    let starts = Tensor::<1, Int>::arange(0..BATCH as i64, device).unsqueeze_dim::<2>(1);
    let steps = starts.clone() % 2 + 1;
    let places = Tensor::<1, Int>::arange(0..LENGTH as i64, device).unsqueeze::<2>();
    let tokens = (starts * 5 + 11 * place as i64 + places * steps.clone()) % VOCAB as i64;
    (tokens.clone(), (tokens + steps) % VOCAB as i64)
}

fn loss(model: &Model, (tokens, next): Batch) -> Tensor<1> {
    let block = |x: Tensor<3>, layer: &Linear| x.clone() + gelu(layer.forward(x));
    let x = model.embedding.forward(tokens);
    let logits = model.head.forward(model.layers.iter().fold(x, block));
    let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
    cross_entropy.forward(logits.flatten(0, 1), next.flatten(0, 1))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Model::new(&device);
    let clipping = Some(GradientClippingConfig::Norm(1.0));
    let mut optimizer = AdamConfig::new().with_grad_clipping(clipping).init();
    let mut rate = CosineAnnealingLrSchedulerConfig::new(3e-3, STEPS).init()?;
    let step = rekindle::record(&model, &batch(0, &device), loss)?
        .with_optimizer(&optimizer)
        .with_parts(PARTS)
        .within("60%")?;
    for number in 0..STEPS {
        let parts = (0..PARTS).map(|part| batch(number * PARTS + part, &device));
        let output = step.run_parts(&model, parts)?;
        model = optimizer.step(rate.step(), model, output.gradients);
        let update = Bytes(rekindle_alloc::peak() as u64);
        let peak = update.max(output.memory.peak_in_use_bytes);
        println!("loss {:.4}, peak {peak}", output.loss.into_scalar::<f32>());
        assert!(Some(peak) <= step.plan().budget);
    }
    println!("{}", step.plan());

    // Validation and snapshots see an ordinary burn module.
    let value = loss(&model.valid(), batch(STEPS * PARTS, &Device::flex()));
    println!("validation loss {:.4}", value.into_scalar::<f32>());
    let file = std::env::temp_dir().join(format!("custom-loop-{}", std::process::id()));
    model.save_file(&file)?;
    drop(Model::new(&device).try_load_file(&file)?);
    Ok(())
}
