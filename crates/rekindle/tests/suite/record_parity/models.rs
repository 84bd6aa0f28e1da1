//! Models as a burn user writes them: no stage is named, nothing is listed.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, GroupNorm,
        GroupNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
        attention::generate_autoregressive_mask,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
        lstm::{Lstm, LstmConfig},
        pool::{AvgPool2d, AvgPool2dConfig, MaxPool2d, MaxPool2dConfig},
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Device, Int, Tensor, activation},
};

pub fn cross_entropy(output: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let device = output.device();
    CrossEntropyLossConfig::new()
        .init(&device)
        .forward(output, targets)
}

/// Normalisation, dropout, skips around every second layer.
#[derive(Module, Debug)]
pub struct Mlp {
    first: Linear,
    norm: LayerNorm,
    dropout: Dropout,
    hidden: Vec<Linear>,
    pub head: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(16, 32).init(device),
            norm: LayerNormConfig::new(32).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            hidden: (0..8)
                .map(|_| LinearConfig::new(32, 32).init(device))
                .collect(),
            head: LinearConfig::new(32, 10).init(device),
        }
    }

    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let x = activation::gelu(self.norm.forward(self.first.forward(input)));
        let mut x = self.dropout.forward(x);
        for (place, layer) in self.hidden.iter().enumerate() {
            let y = activation::gelu(layer.forward(x.clone()));
            x = if place % 2 == 0 {
                x + y
            } else {
                self.dropout.forward(y)
            };
        }
        self.head.forward(x)
    }
}

#[derive(Module, Debug)]
pub struct Block {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Block {
    pub fn new(from: usize, to: usize, device: &Device) -> Self {
        let conv = Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            conv: conv.init(device),
            norm: BatchNormConfig::new(to).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        activation::relu(self.norm.forward(self.conv.forward(x)))
    }
}

/// Ranks change from 4 to 2; running statistics.
#[derive(Module, Debug)]
pub struct Vgg {
    blocks: Vec<Block>,
    pool: MaxPool2d,
    dropout: Dropout,
    head: Linear,
}

impl Vgg {
    pub fn new(device: &Device) -> Self {
        let blocks = (0..4).map(|place| Block::new(if place == 0 { 3 } else { 8 }, 8, device));
        Self {
            blocks: blocks.collect(),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            dropout: DropoutConfig::new(0.2).init(),
            head: LinearConfig::new(8 * 16 * 16, 10).init(device),
        }
    }

    pub fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for block in &self.blocks {
            x = block.forward(x);
        }
        let x = self.pool.forward(x).flatten::<2>(1, 3);
        self.head.forward(self.dropout.forward(x))
    }
}

/// Skips across everything.
#[derive(Module, Debug)]
pub struct UNet {
    down: Vec<Block>,
    up: Vec<Block>,
    shrink: AvgPool2d,
    norm: GroupNorm,
}

impl UNet {
    pub fn new(device: &Device) -> Self {
        Self {
            down: vec![
                Block::new(3, 8, device),
                Block::new(8, 8, device),
                Block::new(8, 8, device),
            ],
            up: (0..3).map(|_| Block::new(16, 8, device)).collect(),
            shrink: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            norm: GroupNormConfig::new(2, 8).init(device),
        }
    }

    pub fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        let mut skips = Vec::new();
        for block in &self.down {
            x = block.forward(x);
            skips.push(x.clone());
            x = self.shrink.forward(x);
        }
        for block in &self.up {
            let Some(skip) = skips.pop() else { break };
            let up = x.repeat_dim(2, 2).repeat_dim(3, 2);
            x = block.forward(Tensor::cat(vec![up, skip], 1));
        }
        let x = self.norm.forward(x);
        x.mean_dim(3).mean_dim(2).flatten::<2>(1, 3)
    }
}

/// burn's transformer layers, a causal mask, token and position embeddings.
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    body: TransformerEncoder,
    pub head: Linear,
}

impl Gpt {
    pub fn new(device: &Device) -> Self {
        Self::with_dropout(0.1, device)
    }

    pub fn with_dropout(dropout: f64, device: &Device) -> Self {
        let body = TransformerEncoderConfig::new(16, 32, 2, 2)
            .with_dropout(dropout)
            .with_norm_first(true);
        Self {
            tokens: EmbeddingConfig::new(40, 16).init(device),
            positions: EmbeddingConfig::new(12, 16).init(device),
            body: body.init(device),
            head: LinearConfig::new(16, 40).with_bias(false).init(device),
        }
    }

    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.head.forward(self.hidden(tokens))
    }

    /// What the last projection takes.
    pub fn hidden(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let places = Tensor::<1, Int>::arange(0..length as i64, &device);
        let places = places.reshape([1, length]).repeat_dim(0, batch);
        let x = self.tokens.forward(tokens) + self.positions.forward(places);
        let mask = generate_autoregressive_mask(batch, length, &device);
        self.body
            .forward(TransformerEncoderInput::new(x).mask_attn(mask))
    }
}

/// Shared weights over time.
#[derive(Module, Debug)]
pub struct Recurrent {
    cell: Lstm,
    head: Linear,
}

impl Recurrent {
    pub fn new(device: &Device) -> Self {
        Self {
            cell: LstmConfig::new(6, 32, true).init(device),
            head: LinearConfig::new(32, 10).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let [batch, length, _] = x.dims();
        let (all, _) = self.cell.forward(x, None);
        let last = all
            .slice([0..batch, length - 1..length, 0..32])
            .flatten::<2>(1, 2);
        self.head.forward(last)
    }
}

/// A frozen trunk with small trainable parts beside it, as low-rank adaptation has them.
#[derive(Module, Debug)]
pub struct Adapted {
    trunk: Vec<Linear>,
    down: Vec<Linear>,
    up: Vec<Linear>,
    unused: Linear,
    head: Linear,
}

impl Adapted {
    pub fn new(device: &Device) -> Self {
        let layers = |from, to| -> Vec<Linear> {
            (0..6)
                .map(|_| LinearConfig::new(from, to).init(device))
                .collect()
        };
        Self {
            trunk: layers(24, 24).into_iter().map(Linear::no_grad).collect(),
            down: layers(24, 2),
            up: layers(2, 24),
            unused: LinearConfig::new(3, 3).init(device),
            head: LinearConfig::new(24, 10).init(device),
        }
    }

    pub fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for ((trunk, down), up) in self.trunk.iter().zip(&self.down).zip(&self.up) {
            let beside = up.forward(down.forward(x.clone()));
            x = activation::relu(trunk.forward(x) + beside);
        }
        self.head.forward(x)
    }
}
