//! An encoder and a decoder as one chain, whose stages hand on a struct: the source's memory, which every decoder
//! block reads, the target's tokens, and the decoder's state.
//!
//! `cargo run --release --example encoder_decoder`

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        attention::{
            MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
        },
        loss::CrossEntropyLossConfig,
    },
    optim::GradientsParams,
    tensor::{Device, Distribution, Int, Tensor, activation::gelu},
};
use rekindle::{Layer, Sequential, StepSeed, checkpoint_sequential};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

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
struct Carry {
    memory: Tensor<3>,
    tokens: Tensor<2, Int>,
    state: Option<Tensor<3>>,
}

rekindle::impl_tensor_tree!(Carry {
    memory,
    tokens,
    state
});

#[derive(Module, Debug)]
struct Attend {
    norm: LayerNorm,
    attention: MultiHeadAttention,
}

impl Attend {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, HEADS)
                .with_dropout(0.1)
                .init(device),
        }
    }

    /// Attention of `x` to `memory`, or, without one, to itself and what came before.
    fn forward(&self, x: Tensor<3>, memory: Option<Tensor<3>>, causal: bool) -> Tensor<3> {
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
struct Feed {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Feed {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let inner = gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(inner)
    }
}

#[derive(Module, Debug)]
struct Encode {
    attend: Attend,
    feed: Feed,
}

#[derive(Module, Debug)]
struct Decode {
    before: Attend,
    memory: Attend,
    feed: Feed,
}

#[derive(Module, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a chain has a few dozen stages, and a boxed module is none"
)]
enum Stage {
    Encode(Encode),
    Start(Embedding),
    Decode(Decode),
    Head(Linear),
}

impl Layer for Stage {
    type Input = Carry;
    type Output = Carry;

    fn forward(&self, carry: Carry) -> Carry {
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
}

fn model() -> Sequential<Stage> {
    let device = Device::flex().autodiff();
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
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = model();
    let input = Carry {
        memory: Tensor::random([BATCH, SOURCE, WIDTH], Distribution::Default, &device),
        tokens: Tensor::<1, Int>::arange(0..(BATCH * TARGET) as i64, &device)
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
    let loss = |output: Carry| match output.state {
        Some(logits) => cross_entropy.forward(logits.flatten(0, 1), next.clone().flatten(0, 1)),
        None => unreachable!("the head gives logits"),
    };
    println!("{} parameters", model.num_params());
    // Parameters are drawn when they are first used: not while memory is measured.
    drop(model.valid());

    for segments in [2, 4, 7] {
        let start = rekindle_alloc::in_use();
        rekindle_alloc::reset_peak();
        device.seed(2);
        // The plain loop draws as the segments do.
        let seed = StepSeed::draw(&device);
        let length = model.layers.len() / segments;
        let mut carry = input.clone();
        for (stage, layer) in model.layers.iter().enumerate() {
            if stage % length == 0 && stage / length < segments {
                device.seed(seed.segment(stage / length));
            }
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

        let start = rekindle_alloc::in_use();
        rekindle_alloc::reset_peak();
        device.seed(2);
        let output = checkpoint_sequential(&model, segments, input.clone(), loss)?;
        let peak = rekindle_alloc::peak() - start;
        let value: f32 = output.loss.into_scalar();
        let difference = largest_difference(&model, &plain, &output.gradients);
        println!(
            "{segments} segments: {:.1} MiB, {:.1} MiB less; loss {value:.6}, gradients differ by {difference:.0e}",
            mebibytes(peak),
            mebibytes(plain_peak) - mebibytes(peak),
        );
        if value != plain_loss || difference.is_nan() || difference > TOLERANCE {
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
fn largest_difference<M: Module>(
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
    impl ModuleVisitor for Compare<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let expected = self.expected.get::<D>(param.id);
            let actual = self.actual.get::<D>(param.id);
            match (expected, actual) {
                (Some(expected), Some(actual)) => {
                    let largest: f32 = expected.clone().abs().max().into_scalar();
                    let difference: f32 = (expected - actual).abs().max().into_scalar();
                    self.largest = self.largest.max(largest);
                    // Unlike `f32::max` this keeps NaN.
                    self.difference = [self.difference, difference]
                        .into_iter()
                        .max_by(f32::total_cmp)
                        .unwrap_or_default();
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
