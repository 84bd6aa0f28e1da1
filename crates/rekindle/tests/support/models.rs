//! The models of the parity tests: plain burn modules, made layers.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig,
        Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
        attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Int, Tensor, activation::gelu},
};
use rekindle::{Layer, Sequential};

pub const WIDTH: usize = 12;

/// A linear layer and its activation function.
#[derive(Module, Debug)]
pub struct Dense {
    linear: Linear,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        gelu(self.linear.forward(input))
    }
}

pub fn mlp(depth: usize, device: &Device) -> Sequential<Dense> {
    let layers = (0..depth)
        .map(|_| Dense {
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        })
        .collect();
    Sequential::new(layers)
}

/// Convolution, batch normalisation, dropout.
#[derive(Module, Debug)]
pub struct ConvBlock {
    conv: Conv2d,
    norm: BatchNorm,
    dropout: Dropout,
}

impl Layer for ConvBlock {
    type Input = Tensor<4>;
    type Output = Tensor<4>;

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.dropout
            .forward(gelu(self.norm.forward(self.conv.forward(input))))
    }
}

pub fn conv_net(depth: usize, channels: usize, device: &Device) -> Sequential<ConvBlock> {
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
pub type Tokens = (Option<Tensor<2, Int>>, Option<Tensor<3>>);

/// An embedding, then residual blocks.
#[derive(Module, Debug)]
pub enum TokenLayer {
    Embed(Embedding),
    Residual(Linear),
}

impl Layer for TokenLayer {
    type Input = Tokens;
    type Output = Tokens;

    fn forward(&self, (tokens, vectors): Tokens) -> Tokens {
        match (self, tokens, vectors) {
            (Self::Embed(embedding), Some(tokens), _) => (None, Some(embedding.forward(tokens))),
            (Self::Residual(linear), _, Some(vectors)) => {
                (None, Some(vectors.clone() + gelu(linear.forward(vectors))))
            }
            _ => unreachable!("the embedding comes first"),
        }
    }
}

pub fn token_net(depth: usize, vocab: usize, device: &Device) -> Sequential<TokenLayer> {
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
pub fn partly_frozen(depth: usize, device: &Device) -> Sequential<Dense> {
    let layers = mlp(depth, device).into_layers().into_iter();
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
pub struct Transformer {
    before_attention: LayerNorm,
    attention: MultiHeadAttention,
    before_feed_forward: LayerNorm,
    inner: Linear,
    outer: Linear,
}

impl Layer for Transformer {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        let attended = MhaInput::self_attn(self.before_attention.forward(input.clone()));
        let input = input + self.attention.forward(attended).context;
        let hidden = gelu(
            self.inner
                .forward(self.before_feed_forward.forward(input.clone())),
        );
        input + self.outer.forward(hidden)
    }
}

pub fn transformer(depth: usize, device: &Device) -> Sequential<Transformer> {
    let layers = (0..depth)
        .map(|_| Transformer {
            before_attention: LayerNormConfig::new(WIDTH).init(device),
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
pub fn tied(device: &Device) -> Sequential<Dense> {
    let pair = mlp(2, device).into_layers();
    Sequential::new([pair.clone(), pair].concat())
}

/// A large frozen layer with a small trainable part beside it: low-rank adaptation (Hu et al. 2021, arXiv 2106.09685).
#[derive(Module, Debug)]
pub struct Adapted {
    base: Linear,
    down: Linear,
    up: Linear,
}

impl Layer for Adapted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let update = self.up.forward(self.down.forward(input.clone()));
        gelu(self.base.forward(input) + update)
    }
}

pub fn adapted(depth: usize, device: &Device) -> Sequential<Adapted> {
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
pub type Carried = (Tensor<2>, Tensor<2>, Tensor<1, Int>);

/// Mixes rows of the memory into the state.
#[derive(Module, Debug)]
pub struct Reader {
    linear: Linear,
    /// Whether it reads the memory. Gradients of a value with more than two readers are sums whose order depends on the
    /// schedule.
    reads: bool,
}

impl Layer for Reader {
    type Input = Carried;
    type Output = Carried;

    fn forward(&self, (state, memory, rows): Carried) -> Carried {
        let mut mixed = gelu(self.linear.forward(state));
        if self.reads {
            mixed = mixed * memory.clone().select(0, rows.clone());
        }
        (mixed, memory, rows)
    }
}

/// The first stage trains a parameter that makes the memory; the second and the last read it.
#[derive(Module, Debug)]
pub enum CarryLayer {
    Remember(Linear),
    Read(Reader),
}

impl Layer for CarryLayer {
    type Input = Carried;
    type Output = Carried;

    fn forward(&self, (state, memory, rows): Carried) -> Carried {
        match self {
            Self::Remember(linear) => (state, linear.forward(memory), rows),
            Self::Read(reader) => reader.forward((state, memory, rows)),
        }
    }
}

pub fn carried(depth: usize, device: &Device) -> Sequential<CarryLayer> {
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
