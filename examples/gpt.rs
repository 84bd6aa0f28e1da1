//! A language model on bytes, trained within 70% of its plain peak. The step returns its logits beside the loss.
//!
//! `cargo run --release --example gpt`

use burn::{
    nn::{
        Embedding, EmbeddingConfig, Linear, LinearConfig,
        attention::generate_autoregressive_mask,
        loss::CrossEntropyLossConfig,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    optim::AdamConfig,
    prelude::*,
};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const TEXT: &[u8] = b"The step is recorded once. The plan says which operations recomputed.";
const BATCH: usize = 16;
const LENGTH: usize = 32;
const WIDTH: usize = 48;
const STEPS: usize = 20;

#[derive(Module, Debug)]
struct Gpt {
    bytes: Embedding,
    places: Embedding,
    body: TransformerEncoder,
    head: Linear,
}

impl Gpt {
    fn new(device: &Device) -> Self {
        let body = TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 3).with_dropout(0.1);
        Self {
            bytes: EmbeddingConfig::new(256, WIDTH).init(device),
            places: EmbeddingConfig::new(LENGTH, WIDTH).init(device),
            body: body.with_norm_first(true).init(device),
            head: LinearConfig::new(WIDTH, 256).init(device),
        }
    }

    fn forward(&self, bytes: Tensor<2, Int>) -> Tensor<3> {
        let device = bytes.device();
        let places = Tensor::<1, Int>::arange(0..LENGTH as i64, &device).unsqueeze::<2>();
        let x = self.bytes.forward(bytes) + self.places.forward(places);
        let input = TransformerEncoderInput::new(x);
        let mask = generate_autoregressive_mask(BATCH, LENGTH, &device);
        self.head.forward(self.body.forward(input.mask_attn(mask)))
    }
}

/// Pieces of the text, and the same pieces one byte later.
fn batch(step: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let start = |row: usize| (step * BATCH + row) * 37 % (TEXT.len() - LENGTH);
    let rows = |shift: usize| {
        let row = |row| &TEXT[start(row) + shift..][..LENGTH];
        let bytes = (0..BATCH).map(row).collect::<Vec<_>>().concat();
        Tensor::from_data(TensorData::new(bytes, [BATCH, LENGTH]), device)
    };
    (rows(0), rows(1))
}

fn loss(model: &Gpt, (bytes, next): (Tensor<2, Int>, Tensor<2, Int>)) -> (Tensor<1>, Tensor<3>) {
    let logits = model.forward(bytes);
    let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
    let loss = cross_entropy.forward(logits.clone().flatten(0, 1), next.flatten(0, 1));
    (loss, logits)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Gpt::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let step = rekindle::record(&model, &batch(0, &device), loss)?
        .with_optimizer(&optimizer)
        .within("70%")?;
    let plan = step.plan();
    let (mut losses, mut peak, mut accuracy) = (Vec::new(), Bytes::ZERO, 0.0);
    for place in 0..STEPS {
        let (bytes, next) = batch(place, &device);
        let output = step.run(&model, (bytes, next.clone()))?;
        model = optimizer.step(3e-3, model, output.gradients);
        losses.push(output.loss.into_scalar::<f32>());
        let update = Bytes(rekindle_alloc::peak() as u64);
        peak = peak.max(output.memory.peak_in_use_bytes).max(update);
        let guess = output.auxiliary.argmax(2).squeeze_dim(2);
        let right = guess.equal(next.without_autodiff()).float();
        accuracy = right.mean().into_scalar::<f32>();
    }
    println!("{plan}; measured peak {peak}");
    println!("loss {losses:.2?}, accuracy {accuracy:.2}");
    assert!(Some(peak) <= plan.budget && losses[STEPS - 1] < losses[0]);
    Ok(())
}
