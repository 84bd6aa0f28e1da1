//! Models with one step.

use burn::{
    module::{Module, Param},
    nn::{
        Dropout, DropoutConfig, GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, Linear,
        LinearConfig, PaddingConfig2d,
        attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
        lstm::{Lstm, LstmConfig},
    },
    tensor::{Device, Distribution, IndexingUpdateOp, Int, Tensor, activation},
};

use super::{Family, SHARES, check};

/// Recordings and plans for other shapes take memory, too.
const OF_SHAPES: [Option<&str>; 2] = [None, Some("80%")];

const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).init(device)
}

fn conv(from: usize, to: usize, size: usize, device: &Device) -> Conv2d {
    let config = Conv2dConfig::new([from, to], [size, size]);
    config.with_padding(PaddingConfig2d::Same).init(device)
}

fn attention(width: usize, device: &Device) -> MultiHeadAttention {
    MultiHeadAttentionConfig::new(width, 2)
        .with_dropout(0.1)
        .init(device)
}

fn cross_entropy(output: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let device = output.device();
    CrossEntropyLossConfig::new()
        .init(&device)
        .forward(output, targets)
}

fn classes(samples: usize, classes: i64, step: usize, device: &Device) -> Tensor<1, Int> {
    let step = step as i64;
    let number = |sample: usize| (sample as i64 * 7 + step) % classes;
    Tensor::from_ints(
        (0..samples).map(number).collect::<Vec<_>>().as_slice(),
        device,
    )
}

/// Patches, attention, and layers that are skipped for samples drawn at random.
#[derive(Module, Debug)]
struct VisionTransformer {
    patches: Conv2d,
    positions: Param<Tensor<3>>,
    blocks: Vec<(LayerNorm, MultiHeadAttention, LayerNorm, Linear, Linear)>,
    head: Linear,
}

/// Each sample's branch by 0, or by the inverse of the probability to stay.
fn drop_path(branch: Tensor<3>) -> Tensor<3> {
    let [samples, ..] = branch.dims();
    let keeps = Tensor::<3>::random([samples, 1, 1], Distribution::Default, &branch.device());
    branch * keeps.greater_elem(0.3).float() / 0.7
}

impl Family for VisionTransformer {
    type Batch = (Tensor<4>, Tensor<1, Int>);

    fn new(device: &Device) -> Self {
        let norm = || LayerNormConfig::new(12).init(device);
        let block = |_| {
            let mlp = (linear(12, 24, device), linear(24, 12, device));
            (norm(), attention(12, device), norm(), mlp.0, mlp.1)
        };
        Self {
            patches: Conv2dConfig::new([3, 12], [4, 4])
                .with_stride([4, 4])
                .init(device),
            positions: Param::from_tensor(Tensor::random([1, 16, 12], NORMAL, device)),
            blocks: (0..4).map(block).collect(),
            head: linear(12, 5, device),
        }
    }

    fn batch(step: usize, device: &Device) -> Self::Batch {
        let images = Tensor::random([6, 3, 16, 16], NORMAL, device);
        (images, classes(6, 5, step, device))
    }

    fn loss(&self, (images, targets): Self::Batch) -> Tensor<1> {
        let patches = self
            .patches
            .forward(images)
            .flatten::<3>(2, 3)
            .swap_dims(1, 2);
        let mut x = patches + self.positions.val();
        for (norm, attention, second, first, last) in &self.blocks {
            let seen = attention.forward(MhaInput::self_attn(norm.forward(x.clone())));
            x = x + drop_path(seen.context);
            let wide = activation::gelu(first.forward(second.forward(x.clone())));
            x = x + drop_path(last.forward(wide));
        }
        cross_entropy(
            self.head.forward(x.mean_dim(1).squeeze_dim::<2>(1)),
            targets,
        )
    }
}

#[test]
fn a_vision_transformer_with_drop_path() {
    own_process!();
    check::<VisionTransformer>(&SHARES);
}

/// Noise that the step itself draws, an embedding of its strength, and attention between down and up.
#[derive(Module, Debug)]
struct Diffusion {
    first: Conv2d,
    time: Linear,
    norm: GroupNorm,
    attention: MultiHeadAttention,
    up: Conv2d,
    last: Conv2d,
}

impl Family for Diffusion {
    type Batch = (Tensor<4>, Tensor<1>);

    fn new(device: &Device) -> Self {
        Self {
            first: conv(1, 8, 3, device),
            time: linear(4, 8, device),
            norm: GroupNormConfig::new(2, 8).init(device),
            attention: attention(8, device),
            up: conv(16, 8, 3, device),
            last: conv(8, 1, 3, device),
        }
    }

    fn batch(_: usize, device: &Device) -> Self::Batch {
        let images = Tensor::random([4, 1, 8, 8], NORMAL, device);
        (images, Tensor::random([4], Distribution::Default, device))
    }

    fn loss(&self, (images, strength): Self::Batch) -> Tensor<1> {
        let noise = images.random_like(NORMAL);
        let share = strength.clone().reshape([4, 1, 1, 1]);
        let noisy = images * (-share.clone() + 1.0).sqrt() + noise.clone() * share.sqrt();
        let skip = activation::silu(self.first.forward(noisy));
        let waves = Tensor::<1>::from_floats([1.0, 2.0, 4.0, 8.0], &skip.device());
        let time = (strength.unsqueeze_dim::<2>(1) * waves.unsqueeze::<2>()).sin();
        let x = skip.clone() + self.time.forward(time).reshape([4, 8, 1, 1]);
        let tokens = self.norm.forward(x).flatten::<3>(2, 3).swap_dims(1, 2);
        let seen = self.attention.forward(MhaInput::self_attn(tokens)).context;
        let x = seen.swap_dims(1, 2).reshape([4, 8, 8, 8]);
        let x = activation::silu(self.up.forward(Tensor::cat(vec![x, skip], 1)));
        (self.last.forward(x) - noise).square().mean()
    }
}

#[test]
fn a_diffusion_model_that_draws_its_noise() {
    own_process!();
    check::<Diffusion>(&SHARES);
}

/// Each row goes to the two experts of the greatest weight.
#[derive(Module, Debug)]
struct Experts {
    router: Linear,
    experts: Vec<(Linear, Linear)>,
}

impl Family for Experts {
    type Batch = (Tensor<2>, Tensor<2>);

    fn new(device: &Device) -> Self {
        Self {
            router: linear(10, 4, device),
            experts: (0..4)
                .map(|_| (linear(10, 20, device), linear(20, 10, device)))
                .collect(),
        }
    }

    fn batch(_: usize, device: &Device) -> Self::Batch {
        let random = || Tensor::random([24, 10], NORMAL, device);
        (random(), random())
    }

    fn loss(&self, (input, target): Self::Batch) -> Tensor<1> {
        let weights = activation::softmax(self.router.forward(input.clone()), 1);
        let (best, indices) = weights.clone().topk_with_indices(2, 1);
        let best = best.clone() / best.sum_dim(1);
        let output = self
            .experts
            .iter()
            .enumerate()
            .map(|(number, (first, last))| {
                let own = indices.clone().equal_elem(number as i64).float() * best.clone();
                last.forward(activation::gelu(first.forward(input.clone()))) * own.sum_dim(1)
            });
        let output = output.reduce(|sum, one| sum + one).expect("experts");
        let balance = weights.mean_dim(0).square().sum();
        (output - target).square().mean() + balance * 0.1
    }
}

#[test]
fn a_mixture_of_experts() {
    own_process!();
    check::<Experts>(&SHARES);
}

/// Messages along edges, of graphs with other numbers of nodes and edges in each step.
#[derive(Module, Debug)]
struct GraphNetwork {
    message: Linear,
    update: Linear,
    head: Linear,
}

impl Family for GraphNetwork {
    type Batch = (Tensor<2>, Tensor<1, Int>, Tensor<1, Int>);

    fn new(device: &Device) -> Self {
        Self {
            message: linear(8, 8, device),
            update: linear(16, 8, device),
            head: linear(8, 3, device),
        }
    }

    fn batch(step: usize, device: &Device) -> Self::Batch {
        let nodes = 1200 - 200 * (step % 3);
        let edges = 2 * nodes;
        let end = |by: usize| {
            let ends = (0..edges).map(|edge| ((edge * by + edge / nodes) % nodes) as i64);
            Tensor::from_ints(ends.collect::<Vec<_>>().as_slice(), device)
        };
        (Tensor::random([nodes, 8], NORMAL, device), end(1), end(5))
    }

    fn loss(&self, (nodes, from, to): Self::Batch) -> Tensor<1> {
        let mut x = nodes;
        for _ in 0..3 {
            let sent = activation::relu(self.message.forward(x.clone())).select(0, from.clone());
            let received = x
                .zeros_like()
                .select_assign(0, to.clone(), sent, IndexingUpdateOp::Add);
            x = self
                .update
                .forward(Tensor::cat(vec![x, received], 1))
                .tanh();
        }
        self.head.forward(x).square().mean()
    }
}

#[test]
fn a_graph_network_with_other_graphs_in_each_step() {
    own_process!();
    check::<GraphNetwork>(&OF_SHAPES);
}

/// Sequences whose length changes, one layer's weights read at every moment.
#[derive(Module, Debug)]
struct Sequences {
    encoder: Lstm,
    decoder: Lstm,
    dropout: Dropout,
    head: Linear,
}

impl Family for Sequences {
    type Batch = (Tensor<3>, Tensor<3>);

    fn new(device: &Device) -> Self {
        let lstm = || LstmConfig::new(6, 10, true).init(device);
        Self {
            encoder: lstm(),
            decoder: lstm(),
            dropout: DropoutConfig::new(0.2).init(),
            head: linear(10, 6, device),
        }
    }

    fn batch(step: usize, device: &Device) -> Self::Batch {
        let random = |length| Tensor::random([1000, length, 6], NORMAL, device);
        (random(5 - step % 2), random(3))
    }

    fn loss(&self, (input, target): Self::Batch) -> Tensor<1> {
        let (_, state) = self.encoder.forward(input, None);
        let (output, _) = self.decoder.forward(target.clone(), Some(state));
        let output = self.head.forward(self.dropout.forward(output));
        (output - target).square().mean()
    }
}

#[test]
fn sequences_of_changing_length() {
    own_process!();
    check::<Sequences>(&OF_SHAPES);
}
