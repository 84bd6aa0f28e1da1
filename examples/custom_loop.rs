//! A training loop of one's own, as burn's book writes it, for a model with ordinary code around checkpointed blocks:
//! gradient accumulation, a learning-rate schedule, validation and a snapshot, none of which know of checkpoints.
//!
//! `cargo run --release --example custom_loop`

use burn::{
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    module::Module,
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        loss::CrossEntropyLossConfig,
    },
    optim::{AdamConfig, GradientsAccumulator, GradientsParams},
    tensor::{Device, Int, Tensor, activation::gelu},
};
use rekindle::{Layer, StepSeed, Tape};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const VOCAB: usize = 64;
const WIDTH: usize = 64;
const DEPTH: usize = 12;
const BATCH: usize = 16;
const LENGTH: usize = 64;
const STEPS: u64 = 12;
/// Steps whose gradients are added up for one update.
const ACCUMULATE: u64 = 2;

/// The first embedding has three uses, whose gradients a tape adds up in another order than the plain loop; Adam makes
/// more of the rounding at every update.
const TOLERANCE: f32 = 1e-3;

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        let inner = gelu(self.up.forward(self.norm.forward(input.clone())));
        input + self.down.forward(inner)
    }

    fn draws_random(&self) -> bool {
        false
    }
}

#[derive(Module, Debug)]
struct Model {
    embedding: Embedding,
    blocks: Vec<Block>,
    head: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let block = |_| Block {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        };
        Self {
            embedding: EmbeddingConfig::new(VOCAB, WIDTH).init(device),
            blocks: (0..DEPTH).map(block).collect(),
            head: LinearConfig::new(WIDTH, VOCAB).init(device),
        }
    }

    /// Ordinary code from end to end. The first embedding goes past all blocks to the head.
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let first = self.embedding.forward(tokens);
        let last = self
            .blocks
            .iter()
            .fold(first.clone(), |x, block| block.forward(x));
        self.head.forward(first + last)
    }

    /// The same with every block checkpointed.
    fn forward_on(&self, tape: &mut Tape, tokens: Tensor<2, Int>) -> Tensor<3> {
        let first = self.embedding.forward(tokens);
        let last = self
            .blocks
            .iter()
            .fold(first.clone(), |x, block| tape.checkpoint(block, x));
        self.head.forward(first + last)
    }
}

/// A batch of counting sequences; the next token is one or two more.
fn batch(step: u64, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let row = |row: usize| {
        let (start, by) = (row * 5 + step as usize * 11, 1 + row % 2);
        (0..=LENGTH).map(move |place| ((start + place * by) % VOCAB) as i32)
    };
    let numbers: Vec<i32> = (0..BATCH).flat_map(row).collect();
    let all = Tensor::<1, Int>::from_ints(numbers.as_slice(), device).reshape([BATCH, LENGTH + 1]);
    (
        all.clone().narrow(1, 0, LENGTH),
        all.narrow(1, 1, LENGTH).flatten(0, 1),
    )
}

fn loss(logits: Tensor<3>, next: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&logits.device())
        .forward(logits.flatten(0, 1), next)
}

struct Trained {
    model: Model,
    losses: Vec<f32>,
    /// The most bytes in use above what was there before.
    peak: usize,
}

fn train(checkpointed: bool) -> Result<Trained, Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Model::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let mut schedule =
        CosineAnnealingLrSchedulerConfig::new(3e-3, (STEPS / ACCUMULATE) as usize).init()?;
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::new();
    let parameters = model.num_params();
    println!("{parameters} parameters, checkpointed: {checkpointed}");
    // Parameters are drawn when they are first used: not while memory is measured.
    drop(model.valid());

    let start = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    for step in 0..STEPS {
        let (tokens, next) = batch(step, &device);
        let (value, gradients) = if checkpointed {
            let mut tape = Tape::new(StepSeed::new(0, step));
            let value = loss(model.forward_on(&mut tape, tokens), next);
            (value.clone(), tape.backward(value, &model)?)
        } else {
            let value = loss(model.forward(tokens), next);
            let gradients = value.backward();
            (value, GradientsParams::from_grads(gradients, &model))
        };
        losses.push(value.into_scalar::<f32>());
        accumulator.accumulate(&model, gradients);
        if (step + 1) % ACCUMULATE == 0 {
            model = optimizer.step(schedule.step(), model, accumulator.grads());
        }
    }
    Ok(Trained {
        model,
        losses,
        peak: rekindle_alloc::peak() - start,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plain = train(false)?;
    let Trained {
        model,
        losses,
        peak,
    } = train(true)?;
    println!("loss {:.4} -> {:.4}", losses[0], losses[losses.len() - 1]);
    let differences = losses.iter().zip(&plain.losses).map(|(a, b)| (a - b).abs());
    // Unlike `f32::max` this keeps NaN.
    let difference = differences.max_by(f32::total_cmp).unwrap_or_default();
    println!("losses differ by {difference:.0e} at most");
    if difference.is_nan() || difference > TOLERANCE {
        return Err("the losses are not the plain loop's".into());
    }
    let mebibytes = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!(
        "peak: {:.1} MiB plain, {:.1} MiB with a tape: {:.1} MiB less",
        mebibytes(plain.peak),
        mebibytes(peak),
        mebibytes(plain.peak) - mebibytes(peak),
    );

    // Validation and snapshots see an ordinary burn module.
    let valid = model.valid();
    let (tokens, next) = batch(STEPS, &Device::flex());
    let value: f32 = loss(valid.forward(tokens), next).into_scalar();
    println!("validation loss {value:.4}");
    let file = std::env::temp_dir().join(format!("rekindle-custom-loop-{}", std::process::id()));
    model.save_file(&file)?;
    let loaded = Model::new(&Device::flex().autodiff()).try_load_file(&file)?;
    println!("saved and loaded {} parameters", loaded.num_params());
    Ok(())
}
