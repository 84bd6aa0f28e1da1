//! The models of the parity tests: plain burn modules, made layers.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig,
        Initializer, Linear, LinearConfig, PaddingConfig2d,
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
