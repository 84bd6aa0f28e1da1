//! A stage of a model that is known only at run time: burn's modules, one for each of its layers.

use burn::{
    module::{Module, Param},
    nn::{
        BatchNorm, Dropout, Embedding, Gelu, LayerNorm, Linear, Relu, Tanh,
        attention::{MhaInput, MultiHeadAttention, generate_autoregressive_mask},
        conv::Conv2d,
        pool::{AvgPool2d, MaxPool2d},
    },
    tensor::Tensor,
};

use super::{
    spec::SampleShape,
    value::{Projection, Value},
};
use rekindle::{
    ChunkedCrossEntropy, layer::Layer, sequential::Sequential, synchronised_batch_norm,
};

/// A layer's module; [`LayerSpec`](super::spec::LayerSpec) says what each kind computes.
#[derive(Module, Debug)]
pub(super) enum Op {
    Linear(Linear),
    Conv2d(Conv2d),
    MaxPool2d(MaxPool2d),
    AvgPool2d(AvgPool2d),
    Flatten(Flatten),
    Relu(Relu),
    Gelu(Gelu),
    Tanh(Tanh),
    Dropout(Dropout),
    BatchNorm(BatchNorm),
    LayerNorm(LayerNorm),
    Embedding(Embedding),
    /// With the embedding's weight.
    Unembedding(Embedding),
    /// A vector for each position.
    Positions(Embedding),
    Attention(Attention),
    Residual(Vec<Op>),
}

/// All dimensions of a sample into one.
#[derive(Module, Debug)]
pub(super) struct Flatten;

/// Attention of each position to all positions, or, if causal, to itself and earlier ones.
#[derive(Module, Debug)]
pub(super) struct Attention {
    /// One. It is in a list because burn has no modules in boxes, and every [`Op`] would be as large.
    pub(super) heads: Vec<MultiHeadAttention>,
    pub(super) causal: bool,
}

/// One stage of a model built from a [`ModelSpec`](super::spec::ModelSpec).
///
/// In a record its parameters are called `ops.0.Linear.weight` and so on, by their layers' places in the stage; inside a
/// residual `ops.0.Residual.2.Linear.weight`.
#[derive(Module, Debug)]
pub struct Stage {
    ops: Vec<Op>,
    /// Shape of one input sample.
    #[module(skip)]
    input: SampleShape,
    /// The loss that runs the last layer.
    #[module(skip)]
    deferred: Option<ChunkedCrossEntropy>,
    /// Whether batch normalisation uses the samples of all ranks.
    synchronised: bool,
}

impl Stage {
    pub(super) fn new(ops: Vec<Op>, input: SampleShape) -> Self {
        Self {
            ops,
            input,
            deferred: None,
            synchronised: false,
        }
    }

    /// Leaves its last layer to the loss, if that is a projection.
    pub(crate) fn defer_projection(&mut self, loss: ChunkedCrossEntropy) {
        if let Some(Op::Linear(_) | Op::Unembedding(_)) = self.ops.last() {
            self.deferred = Some(loss);
        }
    }

    /// Makes its batch normalisation use the samples of all ranks.
    pub(crate) fn synchronise(&mut self) {
        self.synchronised = true;
    }
}

impl Layer for Stage {
    type Input = Value;
    type Output = Value;

    /// # Panics
    ///
    /// If one sample of the input does not have the shape for which the stage was built.
    fn forward(&self, input: Value) -> Value {
        let got = input.sample_shape();
        assert!(
            got == self.input,
            "a stage ran on a value that it was not built for: one sample has the shape {got}, but {} is wanted",
            self.input
        );
        match (self.deferred, self.ops.split_last()) {
            (Some(loss), Some((last, before))) => {
                defer(last, run(before, input, self.synchronised), loss)
            }
            _ => run(&self.ops, input, self.synchronised),
        }
    }
}

fn run(ops: &[Op], input: Value, synchronised: bool) -> Value {
    ops.iter()
        .fold(input, |value, op| op.forward(value, synchronised))
}

/// Evaluates an expression for the numbers inside a value, of any rank; it keeps the rank.
macro_rules! of_any_rank {
    ($value:expr, $tensor:ident => $body:expr) => {
        match $value {
            Value::Float3($tensor) => Value::Float3($body),
            Value::Float4($tensor) => Value::Float4($body),
            other => {
                let $tensor = other.into_float2();
                Value::Float2($body)
            }
        }
    };
}

impl Op {
    fn forward(&self, value: Value, synchronised: bool) -> Value {
        match self {
            Self::Linear(linear) => of_any_rank!(value, x => linear.forward(x)),
            Self::Conv2d(conv) => conv.forward(value.into_float4()).into(),
            Self::MaxPool2d(pool) => pool.forward(value.into_float4()).into(),
            Self::AvgPool2d(pool) => pool.forward(value.into_float4()).into(),
            Self::Flatten(_) => value.flatten(),
            Self::Relu(relu) => of_any_rank!(value, x => relu.forward(x)),
            Self::Gelu(gelu) => of_any_rank!(value, x => gelu.forward(x)),
            Self::Tanh(tanh) => of_any_rank!(value, x => tanh.forward(x)),
            Self::Dropout(dropout) => of_any_rank!(value, x => dropout.forward(x)),
            Self::BatchNorm(norm) if synchronised => {
                of_any_rank!(value, x => synchronised_batch_norm(norm, x))
            }
            Self::BatchNorm(norm) => of_any_rank!(value, x => norm.forward(x)),
            Self::LayerNorm(norm) => of_any_rank!(value, x => norm.forward(x)),
            Self::Embedding(embedding) => embedding.forward(value.into_tokens()).into(),
            Self::Unembedding(shared) => of_any_rank!(value, x => logits(shared, x)),
            Self::Positions(places) => {
                let vectors = value.into_float3();
                (vectors + places.weight.val().unsqueeze::<3>()).into()
            }
            Self::Attention(attention) => attention.forward(value.into_float3()).into(),
            Self::Residual(layers) => {
                let skip = value.clone();
                add(skip, run(layers, value, synchronised))
            }
        }
    }
}

impl Attention {
    fn forward(&self, vectors: Tensor<3>) -> Tensor<3> {
        let [batch, length, _] = vectors.dims();
        let device = vectors.device();
        self.heads.iter().fold(vectors, |vectors, heads| {
            let input = MhaInput::self_attn(vectors);
            let input = match self.causal {
                true => input.mask_attn(generate_autoregressive_mask(batch, length, &device)),
                false => input,
            };
            heads.forward(input).context
        })
    }
}

/// Products with every vector of the embedding, for all rows in one matrix product: otherwise the transposed weight
/// would be copied.
fn logits<const D: usize>(shared: &Embedding, tensor: Tensor<D>) -> Tensor<D> {
    let mut dims = tensor.dims();
    let [vocab, width] = shared.weight.dims();
    let rows = tensor.reshape([dims.iter().product::<usize>() / width, width]);
    dims[D - 1] = vocab;
    rows.matmul(shared.weight.val().transpose()).reshape(dims)
}

/// The value and the layer that the loss applies to it, row by row.
fn defer(op: &Op, value: Value, loss: ChunkedCrossEntropy) -> Value {
    let (weight, bias) = match op {
        Op::Linear(linear) => (
            linear.weight.val(),
            linear.bias.as_ref().map(|bias| bias.val()),
        ),
        Op::Unembedding(shared) => (shared.weight.val().transpose(), None),
        _ => return value,
    };
    Value::Deferred(Box::new(Projection {
        hidden: value.into_rows(),
        weight,
        bias,
        loss,
    }))
}

fn add(skip: Value, value: Value) -> Value {
    match value {
        Value::Float2(tensor) => (skip.into_float2() + tensor).into(),
        Value::Float3(tensor) => (skip.into_float3() + tensor).into(),
        other => (skip.into_float4() + other.into_float4()).into(),
    }
}

/// Sets the weight of projections that share the embedding's weight (Press & Wolf 2017, arXiv 1608.05859) to that weight.
///
/// Both are separate modules with the same parameter id: recordings sum their gradients. burn's clones share a tensor
/// only until one of them is updated, so a run [unties](untie) them before an update and ties them again after it: then
/// the old weight is not kept beside the new one.
pub(crate) fn tie(model: &mut Sequential<Stage>) {
    let mut ops = model.layers.iter().flat_map(|stage| &stage.ops);
    let embedding = ops.find_map(|op| match op {
        Op::Embedding(embedding) => Some(embedding.weight.clone()),
        _ => None,
    });
    if let Some(weight) = embedding {
        for_each_tied(model, |tied| tied.weight = weight.clone());
    }
}

/// Leaves the weight only in the embedding: no forward may run until they are [tied](tie) again.
pub(crate) fn untie(model: &mut Sequential<Stage>) {
    for_each_tied(model, |tied| {
        let (id, device) = (tied.weight.id, tied.weight.device());
        tied.weight = Param::initialized(id, Tensor::empty([0, 0], &device));
    });
}

fn for_each_tied(model: &mut Sequential<Stage>, mut change: impl FnMut(&mut Embedding)) {
    fn in_list(ops: &mut [Op], change: &mut dyn FnMut(&mut Embedding)) {
        for op in ops {
            match op {
                Op::Unembedding(tied) => change(tied),
                Op::Residual(layers) => in_list(layers, change),
                _ => {}
            }
        }
    }
    for stage in &mut model.layers {
        in_list(&mut stage.ops, &mut change);
    }
}
