//! A stage of a model that is known only at run time.
//!
//! A [`Stage`] holds its modules in a flat list and a short program that runs them. Residuals nest to any depth in
//! the program (push the skip, run, add the skip), so the module type is not recursive.

use burn::{
    module::Module,
    nn::{
        BatchNorm, DropoutConfig, Embedding, LayerNorm, Linear,
        attention::{MhaInput, MultiHeadAttention, generate_autoregressive_mask},
        conv::Conv2d,
    },
    tensor::{
        Tensor, activation,
        module::{avg_pool2d, max_pool2d},
        ops::{AvgPoolOptions, MaxPoolOptions},
    },
};

use super::{
    spec::{PoolSpec, SampleShape},
    value::{Projection, Value, ValueError},
};
use rekindle::{
    ChunkedCrossEntropy,
    layer::Layer,
    synchronised_batch_norm,
    tensor_tree::{TensorMapper, TensorTree},
};

/// A layer with parameters.
#[derive(Module, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "burn has no modules in boxes, and a layer's parameters outweigh it"
)]
pub enum Op {
    /// `y = x W + b` on the last dimension.
    Linear(Linear),
    /// 2-D convolution.
    Conv2d(Conv2d),
    /// Batch normalisation over the first dimension of a sample.
    BatchNorm(BatchNorm),
    /// Layer normalisation over the last dimension.
    LayerNorm(LayerNorm),
    /// A learned vector for each token id.
    Embedding(Embedding),
    /// Logits by an embedding's weight.
    Unembedding(Embedding),
    /// A learned vector for each position.
    Positions(Embedding),
    /// Multi-head attention.
    Attention(MultiHeadAttention),
}

/// One step of a stage's program.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StageOp {
    /// Runs the module of this index.
    Apply(usize),
    /// Runs the batch normalisation of this index over the samples of all ranks.
    Synchronise(usize),
    /// Runs the attention of this index.
    Attend {
        op: usize,
        causal: bool,
    },
    Relu,
    Gelu,
    Tanh,
    Sigmoid,
    Softmax,
    Dropout(f64),
    MaxPool(PoolSpec),
    AvgPool(PoolSpec),
    /// To this shape of one sample.
    Reshape(Vec<usize>),
    /// Leaves the linear layer of this index to the loss.
    Defer {
        op: usize,
        loss: ChunkedCrossEntropy,
    },
    /// Remembers the value for the matching `AddSkip`.
    PushSkip,
    AddSkip,
}

/// One stage of a model built from a [`ModelSpec`](super::spec::ModelSpec).
///
/// In a record its parameters are called `ops.0.Linear.weight` and so on, in the order of its layers.
#[derive(Module, Debug)]
pub struct Stage {
    ops: Vec<Op>,
    #[module(skip)]
    program: Vec<StageOp>,
    #[module(skip)]
    input: SampleShape,
}

impl Stage {
    pub(super) fn new(ops: Vec<Op>, program: Vec<StageOp>, input: SampleShape) -> Self {
        Self {
            ops,
            program,
            input,
        }
    }

    /// Shape of one input sample.
    #[must_use]
    pub fn input(&self) -> &SampleShape {
        &self.input
    }

    /// Its layers with parameters, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub(super) fn ops_mut(&mut self) -> &mut [Op] {
        &mut self.ops
    }

    /// Leaves its last layer to the loss, if that is a projection.
    pub(crate) fn defer_projection(&mut self, loss: ChunkedCrossEntropy) {
        if let Some(last) = self.program.last_mut()
            && let StageOp::Apply(op) = *last
            && matches!(self.ops[op], Op::Linear(_) | Op::Unembedding(_))
        {
            *last = StageOp::Defer { op, loss };
        }
    }

    /// Makes its batch normalisation use the samples of all ranks.
    pub(crate) fn synchronise(&mut self) {
        for instruction in &mut self.program {
            if let StageOp::Apply(op) = *instruction
                && matches!(self.ops[op], Op::BatchNorm(_))
            {
                *instruction = StageOp::Synchronise(op);
            }
        }
    }

    fn run(&self, input: Value) -> Result<Value, ValueError> {
        input.check(&self.input)?;
        let mut skips = Vec::new();
        let mut value = input;
        for instruction in &self.program {
            value = match instruction {
                StageOp::Apply(index) => apply(&self.ops[*index], value)?,
                StageOp::Synchronise(index) => value.map(&mut Synchronised(&self.ops[*index])),
                StageOp::Attend { op, causal } => {
                    attend(&self.ops[*op], value.into_float3()?, *causal).into()
                }
                StageOp::Defer { op, loss } => defer(&self.ops[*op], value, *loss)?,
                StageOp::PushSkip => {
                    skips.push(value.clone());
                    value
                }
                StageOp::AddSkip => match skips.pop() {
                    Some(skip) => add(skip, value)?,
                    None => value,
                },
                StageOp::Reshape(shape) => value.reshape(shape)?,
                StageOp::MaxPool(pool) => {
                    let options = MaxPoolOptions::new(pool.kernel)
                        .with_stride(pool.stride())
                        .with_padding(pool.padding);
                    max_pool2d(value.into_float4()?, options).into()
                }
                StageOp::AvgPool(pool) => {
                    let options = AvgPoolOptions::new(pool.kernel)
                        .with_stride(pool.stride())
                        .with_padding(pool.padding)
                        .with_count_include_pad(false);
                    avg_pool2d(value.into_float4()?, options).into()
                }
                StageOp::Relu
                | StageOp::Gelu
                | StageOp::Tanh
                | StageOp::Sigmoid
                | StageOp::Softmax
                | StageOp::Dropout(_) => value.map(&mut Function(instruction)),
            };
        }
        Ok(value)
    }
}

impl Layer for Stage {
    type Input = Value;
    type Output = Value;

    /// # Panics
    ///
    /// If one sample of the input does not have the shape [`Stage::input`]; check it with [`Value::check`].
    fn forward(&self, input: Value) -> Value {
        match self.run(input) {
            Ok(output) => output,
            Err(error) => panic!("a stage ran on a value that it was not built for: {error}"),
        }
    }
}

fn apply(op: &Op, value: Value) -> Result<Value, ValueError> {
    Ok(match op {
        Op::Linear(_) | Op::BatchNorm(_) | Op::LayerNorm(_) | Op::Unembedding(_) => {
            value.map(&mut AnyRank(op))
        }
        Op::Conv2d(conv) => conv.forward(value.into_float4()?).into(),
        Op::Positions(places) => {
            let vectors = value.into_float3()?;
            (vectors + places.weight.val().unsqueeze::<3>()).into()
        }
        Op::Attention(_) => value,
        Op::Embedding(embedding) => {
            let mut sample = value.sample_shape().dims;
            let ids = value.reshape(&[sample.iter().product()])?.into_tokens2()?;
            let vectors = embedding.forward(ids);
            sample.push(vectors.dims()[2]);
            Value::from(vectors).reshape(&sample)?
        }
    })
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
fn defer(op: &Op, value: Value, loss: ChunkedCrossEntropy) -> Result<Value, ValueError> {
    let (weight, bias) = match op {
        Op::Linear(linear) => (
            linear.weight.val(),
            linear.bias.as_ref().map(|bias| bias.val()),
        ),
        Op::Unembedding(shared) => (shared.weight.val().transpose(), None),
        _ => return Ok(value),
    };
    let hidden = match value {
        Value::Float3(tokens) => tokens.flatten(0, 1),
        other => other.into_float2()?,
    };
    Ok(Value::Deferred(Box::new(Projection {
        hidden,
        weight,
        bias,
        loss,
    })))
}

/// Attention of each position to all positions, or, if causal, to itself and earlier ones.
fn attend(op: &Op, vectors: Tensor<3>, causal: bool) -> Tensor<3> {
    let Op::Attention(attention) = op else {
        return vectors;
    };
    let [batch, length, _] = vectors.dims();
    let device = vectors.device();
    let input = MhaInput::self_attn(vectors);
    let input = match causal {
        true => input.mask_attn(generate_autoregressive_mask(batch, length, &device)),
        false => input,
    };
    attention.forward(input).context
}

fn add(skip: Value, value: Value) -> Result<Value, ValueError> {
    Ok(match value {
        Value::Float2(tensor) => (skip.into_float2()? + tensor).into(),
        Value::Float3(tensor) => (skip.into_float3()? + tensor).into(),
        other => (skip.into_float4()? + other.into_float4()?).into(),
    })
}

/// Modules that take floats of any rank.
struct AnyRank<'a>(&'a Op);

impl TensorMapper for AnyRank<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match self.0 {
            Op::Linear(linear) => linear.forward(tensor),
            Op::BatchNorm(norm) => norm.forward(tensor),
            Op::LayerNorm(norm) => norm.forward(tensor),
            Op::Unembedding(shared) => logits(shared, tensor),
            Op::Conv2d(_) | Op::Embedding(_) | Op::Positions(_) | Op::Attention(_) => tensor,
        }
    }
}

/// Batch normalisation by the samples of all ranks.
struct Synchronised<'a>(&'a Op);

impl TensorMapper for Synchronised<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match self.0 {
            Op::BatchNorm(norm) => synchronised_batch_norm(norm, tensor),
            _ => tensor,
        }
    }
}

/// Functions without parameters on floats of any rank.
struct Function<'a>(&'a StageOp);

impl TensorMapper for Function<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match self.0 {
            StageOp::Relu => activation::relu(tensor),
            StageOp::Gelu => activation::gelu(tensor),
            StageOp::Tanh => tensor.tanh(),
            StageOp::Sigmoid => activation::sigmoid(tensor),
            StageOp::Softmax => softmax(tensor),
            StageOp::Dropout(p) => DropoutConfig::new(*p).init().forward(tensor),
            _ => tensor,
        }
    }
}

/// Softmax over the last dimension, shifted by the maximum.
///
/// burn's own softmax detaches the maximum, but a detached leaf requires a gradient again: its saved bytes would depend
/// on whether the input is the first of a segment.
fn softmax<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let last = D - 1;
    let maximum = tensor.clone().set_require_grad(false).max_dim(last);
    let exponential = (tensor - maximum).exp();
    let sum = exponential.clone().sum_dim(last);
    exponential / sum
}
