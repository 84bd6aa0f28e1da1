//! The models of the parity tests: plain burn modules, made layers.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear,
        LinearConfig, PaddingConfig2d,
        attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::gelu},
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
    let pair = mlp(2, device).layers;
    Sequential::new([pair.clone(), pair].concat())
}
