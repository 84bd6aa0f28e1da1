//! An encoder and a decoder as one chain, whose stages hand on a struct: the source's memory, which every decoder
//! block reads, the target's tokens, and the decoder's state.
//!
//! `cargo run --release --example encoder_decoder`

use burn::{
    backend::{Autodiff, Flex},
    module::{Module, ModuleVisitor, Param},
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        attention::{
            MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
        },
        loss::CrossEntropyLossConfig,
    },
    optim::GradientsParams,
    tensor::{Distribution, Int, Tensor, activation::gelu, backend::Backend},
};
use rekindle::{Executor, Layer, Sequential, StepSeed};
use rekindle_plan::planner;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

type B = Autodiff<Flex>;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const VOCAB: usize = 32;
const BATCH: usize = 8;
const SOURCE: usize = 96;
const TARGET: usize = 64;
const BLOCKS: usize = 6;

/// Every decoder block reads the memory, so its gradient is a sum of many parts, and a schedule may add them up in
/// another order than the plain run: relative to the largest value of all gradients.
const TOLERANCE: f32 = 1e-5;

/// What the stages hand on. The tokens want no gradient; the state starts with the decoder.
#[derive(Clone)]
struct Carry<B: Backend> {
    memory: Tensor<B, 3>,
    tokens: Tensor<B, 2, Int>,
    state: Option<Tensor<B, 3>>,
}

rekindle::impl_activation!(Carry {
    memory,
    tokens,
    state
});

#[derive(Module, Debug)]
struct Attend<B: Backend> {
    norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
}

impl<B: Backend> Attend<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, HEADS)
                .with_dropout(0.1)
                .init(device),
        }
    }

    /// Attention of `x` to `memory`, or, without one, to itself and what came before.
    fn forward(&self, x: Tensor<B, 3>, memory: Option<Tensor<B, 3>>, causal: bool) -> Tensor<B, 3> {
        let query = self.norm.forward(x.clone());
        let [batch, length, _] = query.dims();
        let mut input = match memory {
            Some(memory) => MhaInput::new(query, memory.clone(), memory),
            None => MhaInput::self_attn(query),
        };
        if causal {
            let mask = generate_autoregressive_mask(batch, length, &x.device());
            input = input.mask_attn(mask);
        }
        x + self.attention.forward(input).context
    }
}

#[derive(Module, Debug)]
struct Feed<B: Backend> {
    norm: LayerNorm<B>,
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Feed<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let inner = gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(inner)
    }
}

#[derive(Module, Debug)]
struct Encode<B: Backend> {
    attend: Attend<B>,
    feed: Feed<B>,
}

#[derive(Module, Debug)]
struct Decode<B: Backend> {
    before: Attend<B>,
    memory: Attend<B>,
    feed: Feed<B>,
}

#[derive(Module, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a chain has a few dozen stages, and a boxed module is none"
)]
enum Stage<B: Backend> {
    Encode(Encode<B>),
    Start(Embedding<B>),
    Decode(Decode<B>),
    Head(Linear<B>),
}

impl<B: Backend> Layer<B> for Stage<B> {
    type Input = Carry<B>;
    type Output = Carry<B>;

    fn forward(&self, carry: Carry<B>) -> Carry<B> {
        let Carry {
            memory,
            tokens,
            state,
        } = carry;
        let (memory, state) = match (self, state) {
            (Self::Encode(block), state) => {
                let memory = block.attend.forward(memory, None, false);
                (block.feed.forward(memory), state)
            }
            (Self::Start(embedding), _) => (memory, Some(embedding.forward(tokens.clone()))),
            (Self::Decode(block), Some(state)) => {
                let state = block.before.forward(state, None, true);
                let state = block.memory.forward(state, Some(memory.clone()), false);
                (memory, Some(block.feed.forward(state)))
            }
            (Self::Head(linear), Some(state)) => (memory, Some(linear.forward(state))),
            (Self::Decode(_) | Self::Head(_), None) => unreachable!("the decoder has started"),
        };
        Carry {
            memory,
            tokens,
            state,
        }
    }

    fn draws_random(&self) -> bool {
        matches!(self, Self::Encode(_) | Self::Decode(_))
    }
}

fn model() -> Sequential<Stage<B>> {
    let device = Default::default();
    let encode = |_| {
        Stage::Encode(Encode {
            attend: Attend::new(&device),
            feed: Feed::new(&device),
        })
    };
    let decode = |_| {
        Stage::Decode(Decode {
            before: Attend::new(&device),
            memory: Attend::new(&device),
            feed: Feed::new(&device),
        })
    };
    let mut stages: Vec<_> = (0..BLOCKS).map(encode).collect();
    stages.push(Stage::Start(
        EmbeddingConfig::new(VOCAB, WIDTH).init(&device),
    ));
    stages.extend((0..BLOCKS).map(decode));
    stages.push(Stage::Head(LinearConfig::new(WIDTH, VOCAB).init(&device)));
    Sequential::new(stages)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Default::default();
    B::seed(&device, 1);
    let model = model();
    let input = Carry {
        memory: Tensor::random([BATCH, SOURCE, WIDTH], Distribution::Default, &device),
        tokens: Tensor::<B, 1, Int>::arange(0..(BATCH * TARGET) as i64, &device)
            .remainder_scalar(VOCAB as i64)
            .reshape([BATCH, TARGET]),
        state: None,
    };
    let next = input
        .tokens
        .clone()
        .add_scalar(1)
        .remainder_scalar(VOCAB as i64);
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    let loss = |output: Carry<B>| match output.state {
        Some(logits) => cross_entropy.forward(logits.flatten(0, 1), next.clone().flatten(0, 1)),
        None => unreachable!("the head gives logits"),
    };
    let seed = StepSeed::new(0, 0);
    // Parameters are drawn when they are first used: not while memory is measured.
    println!("{} parameters", model.num_params());

    let start = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    let mut carry = input.clone();
    for (stage, layer) in model.layers().iter().enumerate() {
        B::seed(&device, seed.stage(rekindle_plan::StageId(stage)));
        carry = layer.forward(carry);
    }
    let value = loss(carry);
    let plain_loss: f32 = value.clone().into_scalar();
    let plain = GradientsParams::from_grads(value.backward(), &model);
    let plain_peak = rekindle_alloc::peak() - start;
    println!(
        "plain: {:.1} MiB, loss {plain_loss:.6}",
        mebibytes(plain_peak)
    );

    for segments in [2, 4, 7] {
        let executor = Executor::new(planner::uniform(model.len(), segments)?);
        let start = rekindle_alloc::in_use();
        rekindle_alloc::reset_peak();
        let output = executor.step(&model, input.clone(), seed, loss)?;
        let peak = rekindle_alloc::peak() - start;
        let value: f32 = output.loss.into_scalar();
        let difference = largest_difference(&model, &plain, &output.gradients);
        println!(
            "{segments} segments: {:.1} MiB, {:.1} MiB less; loss {value:.6}, gradients differ by {difference:.0e}",
            mebibytes(peak),
            mebibytes(plain_peak) - mebibytes(peak),
        );
        if value != plain_loss || difference > TOLERANCE {
            return Err("the gradients are not the plain run's".into());
        }
    }
    Ok(())
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The largest difference of two gradients of one parameter, relative to the largest of all; infinite where one is
/// missing.
fn largest_difference<M: Module<B>>(
    model: &M,
    expected: &GradientsParams,
    actual: &GradientsParams,
) -> f32 {
    struct Compare<'a> {
        expected: &'a GradientsParams,
        actual: &'a GradientsParams,
        largest: f32,
        difference: f32,
    }
    impl ModuleVisitor<B> for Compare<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let expected = self.expected.get::<Flex, D>(param.id);
            let actual = self.actual.get::<Flex, D>(param.id);
            match (expected, actual) {
                (Some(expected), Some(actual)) => {
                    let largest: f32 = expected.clone().abs().max().into_scalar();
                    let difference: f32 = (expected - actual).abs().max().into_scalar();
                    self.largest = self.largest.max(largest);
                    self.difference = self.difference.max(difference);
                }
                (None, None) => {}
                _ => self.difference = f32::INFINITY,
            }
        }
    }
    let mut compare = Compare {
        expected,
        actual,
        largest: f32::MIN_POSITIVE,
        difference: 0.0,
    };
    model.visit(&mut compare);
    compare.difference / compare.largest
}
