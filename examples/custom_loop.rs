//! A training loop of one's own, as burn's book writes it, for a model with ordinary code around checkpointed blocks:
//! gradient accumulation, a learning-rate schedule, validation and a snapshot, none of which know of checkpoints.
//!
//! `cargo run --release --example custom_loop`

use burn::{
    backend::{Autodiff, Flex},
    lr_scheduler::{LrScheduler, cosine::CosineAnnealingLrSchedulerConfig},
    module::{AutodiffModule, Module},
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        loss::CrossEntropyLossConfig,
    },
    optim::{AdamConfig, GradientsAccumulator, GradientsParams, Optimizer},
    record::CompactRecorder,
    tensor::{Int, Tensor, activation::gelu, backend::Backend},
};
use rekindle::{CheckpointBackend, Layer, StepSeed, Tape};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

type B = Autodiff<Flex>;

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
struct Block<B: Backend> {
    norm: LayerNorm<B>,
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Layer<B> for Block<B> {
    type Input = Tensor<B, 3>;
    type Output = Tensor<B, 3>;

    fn forward(&self, input: Tensor<B, 3>) -> Tensor<B, 3> {
        let inner = gelu(self.up.forward(self.norm.forward(input.clone())));
        input + self.down.forward(inner)
    }

    fn draws_random(&self) -> bool {
        false
    }
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    embedding: Embedding<B>,
    blocks: Vec<Block<B>>,
    head: Linear<B>,
}

impl<B: Backend> Model<B> {
    fn new(device: &B::Device) -> Self {
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
    fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let first = self.embedding.forward(tokens);
        let last = self
            .blocks
            .iter()
            .fold(first.clone(), |x, block| block.forward(x));
        self.head.forward(first + last)
    }
}

impl<B: CheckpointBackend> Model<B> {
    /// The same with every block checkpointed.
    fn forward_on(&self, tape: &mut Tape<B>, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let first = tape.share(self.embedding.forward(tokens));
        let last = self
            .blocks
            .iter()
            .fold(first.clone(), |x, block| tape.checkpoint(block, x));
        self.head.forward(first + last)
    }
}

/// A batch of counting sequences; the next token is one or two more.
fn batch<B: Backend>(step: u64, device: &B::Device) -> (Tensor<B, 2, Int>, Tensor<B, 1, Int>) {
    let row = |row: usize| {
        let (start, by) = (row * 5 + step as usize * 11, 1 + row % 2);
        (0..=LENGTH).map(move |place| ((start + place * by) % VOCAB) as i32)
    };
    let numbers: Vec<i32> = (0..BATCH).flat_map(row).collect();
    let all =
        Tensor::<B, 1, Int>::from_ints(numbers.as_slice(), device).reshape([BATCH, LENGTH + 1]);
    (
        all.clone().narrow(1, 0, LENGTH),
        all.narrow(1, 1, LENGTH).flatten(0, 1),
    )
}

fn loss<B: Backend>(logits: Tensor<B, 3>, next: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    CrossEntropyLossConfig::new()
        .init(&logits.device())
        .forward(logits.flatten(0, 1), next)
}

struct Trained {
    model: Model<B>,
    losses: Vec<f32>,
    /// The most bytes in use above what was there before.
    peak: usize,
}

fn train(checkpointed: bool) -> Result<Trained, Box<dyn std::error::Error>> {
    let device = Default::default();
    B::seed(&device, 1);
    let mut model = Model::<B>::new(&device);
    let parameters = model.num_params();
    let mut optimizer = AdamConfig::new().init();
    let mut schedule =
        CosineAnnealingLrSchedulerConfig::new(3e-3, (STEPS / ACCUMULATE) as usize).init()?;
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::new();
    println!("{parameters} parameters, checkpointed: {checkpointed}");

    let start = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    for step in 0..STEPS {
        let (tokens, next) = batch::<B>(step, &device);
        let (value, gradients) = if checkpointed {
            let mut tape = Tape::new(StepSeed::new(0, step));
            let value = loss(model.forward_on(&mut tape, tokens), next);
            (value.clone(), tape.backward(value, &model)?)
        } else {
            let value = loss(model.forward(tokens), next);
            let gradients = value.backward();
            (value, GradientsParams::from_grads(gradients, &model))
        };
        losses.push(value.into_scalar());
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
    let difference = losses.iter().zip(&plain.losses).map(|(a, b)| (a - b).abs());
    let difference = difference.fold(0.0, f32::max);
    println!("losses differ by {difference:.0e} at most");
    if difference > TOLERANCE {
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
    let device = Default::default();
    let valid = model.valid();
    let (tokens, next) = batch::<Flex>(STEPS, &device);
    let value: f32 = loss(valid.forward(tokens), next).into_scalar();
    println!("validation loss {value:.4}");
    let file = std::env::temp_dir().join(format!("rekindle-custom-loop-{}", std::process::id()));
    model.save_file(&file, &CompactRecorder::new())?;
    let loaded = Model::<B>::new(&device).load_file(&file, &CompactRecorder::new(), &device)?;
    println!("saved and loaded {} parameters", loaded.num_params());
    Ok(())
}
