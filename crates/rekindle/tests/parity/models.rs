//! The models of the parity tests: plain burn modules, made layers.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig,
        Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
        attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Int, Tensor, activation::gelu, backend::Backend},
};
use rekindle::{CheckpointBackend, Layer, Sequential, balanced};

pub const WIDTH: usize = 12;

/// A linear layer and its activation function.
#[derive(Module, Debug)]
pub struct Dense<B: Backend> {
    linear: Linear<B>,
}

impl<B: Backend> Layer<B> for Dense<B> {
    type Input = Tensor<B, 2>;
    type Output = Tensor<B, 2>;

    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        gelu(self.linear.forward(input))
    }

    fn has_balanced(&self) -> bool {
        true
    }

    fn forward_balanced(&self, input: Tensor<B, 2>) -> Tensor<B, 2>
    where
        B: CheckpointBackend,
    {
        balanced::run(self, |twin: &Dense<B::Balanced>| {
            balanced::from_balanced(twin.forward(balanced::to_balanced(input)))
        })
    }

    fn draws_random(&self) -> bool {
        false
    }
}

pub fn mlp<B: Backend>(depth: usize, device: &B::Device) -> Sequential<Dense<B>> {
    let layers = (0..depth)
        .map(|_| Dense {
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        })
        .collect();
    Sequential::new(layers)
}

/// Convolution, batch normalisation, dropout. `draws_random` is left at its default.
#[derive(Module, Debug)]
pub struct ConvBlock<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    dropout: Dropout,
}

impl<B: Backend> Layer<B> for ConvBlock<B> {
    type Input = Tensor<B, 4>;
    type Output = Tensor<B, 4>;

    fn forward(&self, input: Tensor<B, 4>) -> Tensor<B, 4> {
        self.dropout
            .forward(gelu(self.norm.forward(self.conv.forward(input))))
    }

    fn has_balanced(&self) -> bool {
        true
    }

    fn forward_balanced(&self, input: Tensor<B, 4>) -> Tensor<B, 4>
    where
        B: CheckpointBackend,
    {
        balanced::run(self, |twin: &ConvBlock<B::Balanced>| {
            balanced::from_balanced(twin.forward(balanced::to_balanced(input)))
        })
    }
}

pub fn conv_net<B: Backend>(
    depth: usize,
    channels: usize,
    device: &B::Device,
) -> Sequential<ConvBlock<B>> {
    let layers = (0..depth)
        .map(|_| ConvBlock {
            conv: Conv2dConfig::new([channels, channels], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device),
            norm: BatchNormConfig::new(channels).init(device),
            dropout: DropoutConfig::new(0.3).init(),
        })
        .collect();
    Sequential::new(layers)
}

/// Tokens on their way in, vectors on their way out.
pub type Tokens<B> = (Option<Tensor<B, 2, Int>>, Option<Tensor<B, 3>>);

/// An embedding, then residual blocks.
#[derive(Module, Debug)]
pub enum TokenLayer<B: Backend> {
    Embed(Embedding<B>),
    Residual(Linear<B>),
}

impl<B: Backend> Layer<B> for TokenLayer<B> {
    type Input = Tokens<B>;
    type Output = Tokens<B>;

    fn forward(&self, (tokens, vectors): Tokens<B>) -> Tokens<B> {
        match (self, tokens, vectors) {
            (Self::Embed(embedding), Some(tokens), _) => (None, Some(embedding.forward(tokens))),
            (Self::Residual(linear), _, Some(vectors)) => {
                (None, Some(vectors.clone() + gelu(linear.forward(vectors))))
            }
            _ => unreachable!("the embedding comes first"),
        }
    }

    fn has_balanced(&self) -> bool {
        matches!(self, Self::Residual(_))
    }

    fn forward_balanced(&self, (tokens, vectors): Tokens<B>) -> Tokens<B>
    where
        B: CheckpointBackend,
    {
        balanced::run(self, |twin: &TokenLayer<B::Balanced>| {
            let input = (
                tokens.map(balanced::to_balanced),
                vectors.map(balanced::to_balanced),
            );
            let (tokens, vectors) = twin.forward(input);
            (
                tokens.map(balanced::from_balanced),
                vectors.map(balanced::from_balanced),
            )
        })
    }

    fn draws_random(&self) -> bool {
        false
    }
}

pub fn token_net<B: Backend>(
    depth: usize,
    vocab: usize,
    device: &B::Device,
) -> Sequential<TokenLayer<B>> {
    let mut layers = vec![TokenLayer::Embed(
        EmbeddingConfig::new(vocab, WIDTH)
            .with_initializer(Initializer::Normal {
                mean: 0.0,
                std: 1.0,
            })
            .init(device),
    )];
    layers.extend(
        (1..depth).map(|_| TokenLayer::Residual(LinearConfig::new(WIDTH, WIDTH).init(device))),
    );
    Sequential::new(layers)
}

/// A stack of linear layers of which the first and one in between are frozen.
pub fn partly_frozen<B: Backend>(depth: usize, device: &B::Device) -> Sequential<Dense<B>> {
    let layers = mlp::<B>(depth, device).into_layers().into_iter();
    let layers = layers.enumerate().map(|(stage, layer)| {
        if stage % 3 == 0 {
            layer.no_grad()
        } else {
            layer
        }
    });
    Sequential::new(layers.collect())
}

/// A transformer's encoder block: attention and a feed-forward part, each behind a normalisation and beside a skip.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    before_attention: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    before_feed_forward: LayerNorm<B>,
    inner: Linear<B>,
    outer: Linear<B>,
}

impl<B: Backend> Layer<B> for Transformer<B> {
    type Input = Tensor<B, 3>;
    type Output = Tensor<B, 3>;

    fn forward(&self, input: Tensor<B, 3>) -> Tensor<B, 3> {
        let attended = MhaInput::self_attn(self.before_attention.forward(input.clone()));
        let input = input + self.attention.forward(attended).context;
        let hidden = gelu(
            self.inner
                .forward(self.before_feed_forward.forward(input.clone())),
        );
        input + self.outer.forward(hidden)
    }

    fn has_balanced(&self) -> bool {
        true
    }

    fn forward_balanced(&self, input: Tensor<B, 3>) -> Tensor<B, 3>
    where
        B: CheckpointBackend,
    {
        balanced::run(self, |twin: &Transformer<B::Balanced>| {
            balanced::from_balanced(twin.forward(balanced::to_balanced(input)))
        })
    }
}

pub fn transformer<B: Backend>(depth: usize, device: &B::Device) -> Sequential<Transformer<B>> {
    let layers = (0..depth)
        .map(|_| Transformer {
            before_attention: LayerNormConfig::new(WIDTH).init(device),
            // Attention's own dropout draws: `draws_random` is left at its default.
            attention: MultiHeadAttentionConfig::new(WIDTH, 3)
                .with_dropout(0.2)
                .init(device),
            before_feed_forward: LayerNormConfig::new(WIDTH).init(device),
            inner: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
            outer: LinearConfig::new(2 * WIDTH, WIDTH).init(device),
        })
        .collect();
    Sequential::new(layers)
}

/// Two layers in turn, each used again and again: clones that share their parameters.
///
/// With two uses of each the order of a sum does not matter.
pub fn tied<B: Backend>(device: &B::Device) -> Sequential<Dense<B>> {
    let pair = mlp::<B>(2, device).into_layers();
    // Lazy parameters would be drawn anew in each clone.
    for layer in &pair {
        layer.num_params();
    }
    Sequential::new([pair.clone(), pair].concat())
}

/// A large frozen layer with a small trainable part beside it: low-rank adaptation (Hu et al. 2021, arXiv 2106.09685).
#[derive(Module, Debug)]
pub struct Adapted<B: Backend> {
    base: Linear<B>,
    down: Linear<B>,
    up: Linear<B>,
}

impl<B: Backend> Layer<B> for Adapted<B> {
    type Input = Tensor<B, 2>;
    type Output = Tensor<B, 2>;

    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        let update = self.up.forward(self.down.forward(input.clone()));
        gelu(self.base.forward(input) + update)
    }

    fn has_balanced(&self) -> bool {
        true
    }

    fn forward_balanced(&self, input: Tensor<B, 2>) -> Tensor<B, 2>
    where
        B: CheckpointBackend,
    {
        balanced::run(self, |twin: &Adapted<B::Balanced>| {
            balanced::from_balanced(twin.forward(balanced::to_balanced(input)))
        })
    }

    fn draws_random(&self) -> bool {
        false
    }
}

pub fn adapted<B: Backend>(depth: usize, device: &B::Device) -> Sequential<Adapted<B>> {
    const RANK: usize = 2;
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
    let layers = (0..depth).map(|_| Adapted {
        base: linear(WIDTH, WIDTH).no_grad(),
        down: linear(WIDTH, RANK),
        up: linear(RANK, WIDTH),
    });
    Sequential::new(layers.collect())
}

/// A state, a memory that stages read and hand on, and row numbers that want no gradient.
pub type Carried<B> = (Tensor<B, 2>, Tensor<B, 2>, Tensor<B, 1, Int>);

/// Mixes rows of the memory into the state.
#[derive(Module, Debug)]
pub struct Reader<B: Backend> {
    linear: Linear<B>,
    /// Whether it reads the memory. Gradients of a value with more than two readers are sums whose order depends on the
    /// schedule.
    reads: bool,
}

impl<B: Backend> Layer<B> for Reader<B> {
    type Input = Carried<B>;
    type Output = Carried<B>;

    fn forward(&self, (state, memory, rows): Carried<B>) -> Carried<B> {
        let mut mixed = gelu(self.linear.forward(state));
        if self.reads {
            mixed = mixed * memory.clone().select(0, rows.clone());
        }
        (mixed, memory, rows)
    }

    fn has_balanced(&self) -> bool {
        true
    }

    fn forward_balanced(&self, (state, memory, rows): Carried<B>) -> Carried<B>
    where
        B: CheckpointBackend,
    {
        balanced::run(self, |twin: &Reader<B::Balanced>| {
            let (state, memory, rows) = twin.forward((
                balanced::to_balanced(state),
                balanced::to_balanced(memory),
                balanced::to_balanced(rows),
            ));
            (
                balanced::from_balanced(state),
                balanced::from_balanced(memory),
                balanced::from_balanced(rows),
            )
        })
    }

    fn draws_random(&self) -> bool {
        false
    }
}

/// The first stage trains a parameter that makes the memory; the second and the last read it.
#[derive(Module, Debug)]
pub enum CarryLayer<B: Backend> {
    Remember(Linear<B>),
    Read(Reader<B>),
}

impl<B: Backend> Layer<B> for CarryLayer<B> {
    type Input = Carried<B>;
    type Output = Carried<B>;

    fn forward(&self, (state, memory, rows): Carried<B>) -> Carried<B> {
        match self {
            Self::Remember(linear) => (state, linear.forward(memory), rows),
            Self::Read(reader) => reader.forward((state, memory, rows)),
        }
    }

    fn has_balanced(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    fn forward_balanced(&self, input: Carried<B>) -> Carried<B>
    where
        B: CheckpointBackend,
    {
        match self {
            Self::Read(reader) => reader.forward_balanced(input),
            Self::Remember(_) => unreachable!("only readers have a balanced form"),
        }
    }

    fn draws_random(&self) -> bool {
        false
    }
}

pub fn carried<B: Backend>(depth: usize, device: &B::Device) -> Sequential<CarryLayer<B>> {
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
    let mut layers = vec![CarryLayer::Remember(linear())];
    layers.extend((1..depth).map(|stage| {
        CarryLayer::Read(Reader {
            linear: linear(),
            reads: stage == 1 || stage == depth - 1,
        })
    }));
    Sequential::new(layers)
}
