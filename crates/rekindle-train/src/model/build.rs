//! From a description to burn modules.
//!
//! All parameters are initialised here, stage by stage and layer by layer; burn itself would initialise them at their
//! first use. So calling [`Device::seed`] before [`build`] makes a model reproducible, and the grouping of layers into
//! stages does not change any value. Linear layers before ReLU or GELU start as mirrored pairs of an orthogonal map, so
//! that stacks of any depth train; the modules `init` and `mirror` explain this.

use burn::{
    module::{Initializer, Module, ModuleVisitor, Param},
    nn::{
        BatchNormConfig, Embedding, EmbeddingConfig, LayerNormConfig, Linear, PaddingConfig2d,
        attention::MultiHeadAttentionConfig, conv::Conv2dConfig,
    },
    tensor::{Device, Tensor, TensorData},
};

use super::{
    init::{FirstValues, FirstWeight, conv_fan_in, independent_values, linear_values},
    mirror::mirrored_weight,
    shape::LayerShape,
    shape_error::ShapeError,
    spec::{LayerSpec, ModelSpec},
    stage::{Op, Stage, StageOp},
    stages::ModelStages,
};
use crate::device::staging::Staging;
use rekindle::dtype::Dtype;

/// The error of a model that cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// A layer is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The stages belong to another model.
    #[error(
        "the stages cover {planned} layers, but the model has {layers}; plan the stages of this model"
    )]
    OtherModel {
        /// Number of layers that the stages cover in order, from the first.
        planned: usize,
        /// Layers of the model.
        layers: usize,
    },
}

/// Builds a module for each stage, with all parameters drawn in `f32` and rounded to `dtype`.
///
/// Memory: the parameters, plus the largest one on the host while it is drawn, and the largest layer in `f32`.
///
/// # Errors
///
/// A model whose shapes don't fit, or stages that don't cover its layers in order.
pub fn build(
    model: &ModelSpec,
    plan: &ModelStages,
    dtype: Dtype,
    device: &Device,
) -> Result<Vec<Stage>, BuildError> {
    let mut staging = Staging::default();
    build_with(model, plan, dtype, device, &mut |first, dims, device| {
        first.init(dims, device, &mut staging)
    })
}

/// Like [`build`], for a device that computes nothing: no value is drawn on the host.
///
/// # Errors
///
/// See [`build`].
pub fn build_shapes(
    model: &ModelSpec,
    plan: &ModelStages,
    dtype: Dtype,
    device: &Device,
) -> Result<Vec<Stage>, BuildError> {
    build_with(model, plan, dtype, device, &mut |_, dims, device| {
        Initializer::Zeros.init(dims, device)
    })
}

/// Creates a linear layer's weight `[inputs, outputs]` by its initialisation.
type InitWeight<'a> = dyn FnMut(FirstWeight, [usize; 2], &Device) -> Param<Tensor<2>> + 'a;

impl FirstWeight {
    fn init(self, dims: [usize; 2], device: &Device, staging: &mut Staging) -> Param<Tensor<2>> {
        match self {
            Self::Drawn(initializer) => initializer.init(dims, device),
            Self::Mirrored { pairs_in } => {
                let [inputs, outputs] = dims;
                let values = mirrored_weight(inputs, outputs, pairs_in, device);
                let bytes = size_of_val(values.as_slice()) as u64;
                let weight = Param::from_data(TensorData::new(values, dims), device);
                staging.copied(bytes, device);
                weight
            }
        }
    }
}

fn build_with(
    model: &ModelSpec,
    plan: &ModelStages,
    dtype: Dtype,
    device: &Device,
    init: &mut InitWeight<'_>,
) -> Result<Vec<Stage>, BuildError> {
    let shape = model.infer()?;
    let layers = model.layers.len();
    let planned = plan.stages.iter().try_fold(0, |next, stage| {
        if stage.layers.start == next && stage.layers.end > next {
            Ok(stage.layers.end)
        } else {
            Err(next)
        }
    });
    match planned {
        Ok(planned) if planned == layers => {}
        Ok(planned) | Err(planned) => return Err(BuildError::OtherModel { planned, layers }),
    }
    let shares = shares_embedding(&model.layers);
    let mut embedding = None;
    Ok(plan
        .stages
        .iter()
        .map(|stage| {
            let mut builder = StageBuilder {
                ops: Vec::new(),
                program: Vec::new(),
                shares,
                embedding: &mut embedding,
                dtype,
                device,
                init: &mut *init,
            };
            for index in stage.layers.clone() {
                builder.layer(&model.layers, index, &shape.layers[index]);
            }
            let input = shape.layers[stage.layers.start].input.clone();
            Stage::new(builder.ops, builder.program, input)
        })
        .collect())
}

fn shares_embedding(layers: &[LayerSpec]) -> bool {
    layers.iter().any(|layer| match layer {
        LayerSpec::Unembedding { .. } => true,
        LayerSpec::Residual(layers) => shares_embedding(layers),
        _ => false,
    })
}

/// Vectors of length 1 on average: their products with normalised ones, of length `sqrt(dim)`, are near 1, as logits
/// should be at the start.
fn unit_rows(dim: usize) -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: (dim as f64).sqrt().recip(),
    }
}

struct StageBuilder<'a> {
    ops: Vec<Op>,
    program: Vec<StageOp>,
    /// Whether a projection shares the embedding.
    shares: bool,
    /// The model's first embedding, which other layers may share.
    embedding: &'a mut Option<Embedding>,
    dtype: Dtype,
    device: &'a Device,
    init: &'a mut InitWeight<'a>,
}

impl StageBuilder<'_> {
    /// Adds one layer of a list.
    fn layer(&mut self, list: &[LayerSpec], index: usize, shape: &LayerShape) {
        let first = shape.input.dims.first().copied().unwrap_or(0);
        let last = shape.input.dims.last().copied().unwrap_or(0);
        let instruction = match &list[index] {
            LayerSpec::Linear { out, bias } => {
                let FirstValues {
                    weight,
                    bias: bias_values,
                } = linear_values(list, index, last);
                let weight = (self.init)(weight, [last, *out], self.device);
                let bias = bias.then(|| bias_values.init([*out], self.device));
                return self.op(Op::Linear(Linear { weight, bias }));
            }
            LayerSpec::Conv2d {
                out,
                kernel,
                stride,
                padding,
                bias,
            } => {
                let padding = padding.each_side(*kernel);
                let fan_in = conv_fan_in(&shape.input, *kernel, *stride, padding);
                let (weight, bias_values) = independent_values(&list[index + 1..], fan_in, *bias);
                let [rows, columns] = padding;
                let config = Conv2dConfig::new([first, *out], *kernel)
                    .with_stride(*stride)
                    .with_padding(PaddingConfig2d::Explicit(rows, columns, rows, columns))
                    .with_bias(false)
                    .with_initializer(weight);
                let mut conv = config.init(self.device);
                conv.bias = bias.then(|| bias_values.init([*out], self.device));
                return self.op(Op::Conv2d(conv));
            }
            LayerSpec::BatchNorm { epsilon, momentum } => {
                let config = BatchNormConfig::new(first)
                    .with_epsilon(*epsilon)
                    .with_momentum(*momentum);
                return self.op(Op::BatchNorm(config.init(self.device)));
            }
            LayerSpec::LayerNorm { epsilon } => {
                let config = LayerNormConfig::new(last).with_epsilon(*epsilon);
                return self.op(Op::LayerNorm(config.init(self.device)));
            }
            LayerSpec::Embedding { vocab, dim } => {
                let mut config = EmbeddingConfig::new(*vocab, *dim);
                if self.shares {
                    config = config.with_initializer(unit_rows(*dim));
                }
                let embedding = config.init(self.device);
                self.op(Op::Embedding(embedding));
                if let (None, Some(Op::Embedding(first))) = (&self.embedding, self.ops.last()) {
                    *self.embedding = Some(first.clone());
                }
                return;
            }
            LayerSpec::Unembedding { .. } => {
                let shared = self.embedding.clone();
                let shared = shared.unwrap_or_else(|| unreachable!("the shapes were inferred"));
                self.program.push(StageOp::Apply(self.ops.len()));
                self.ops.push(Op::Unembedding(shared));
                return;
            }
            LayerSpec::Positions => {
                let places = EmbeddingConfig::new(first, last).with_initializer(unit_rows(last));
                return self.op(Op::Positions(places.init(self.device)));
            }
            LayerSpec::Attention { heads, causal } => {
                let config = MultiHeadAttentionConfig::new(last, *heads).with_dropout(0.0);
                let op = Op::Attention(config.init(self.device));
                self.drawn(op);
                StageOp::Attend {
                    op: self.ops.len() - 1,
                    causal: *causal,
                }
            }
            LayerSpec::Residual(layers) => {
                self.program.push(StageOp::PushSkip);
                for (index, shape) in shape.inner.iter().enumerate() {
                    self.layer(layers, index, shape);
                }
                StageOp::AddSkip
            }
            LayerSpec::MaxPool2d(pool) => StageOp::MaxPool(*pool),
            LayerSpec::AvgPool2d(pool) => StageOp::AvgPool(*pool),
            LayerSpec::Flatten | LayerSpec::Reshape { .. } => {
                StageOp::Reshape(shape.output.dims.clone())
            }
            LayerSpec::Relu => StageOp::Relu,
            LayerSpec::Gelu => StageOp::Gelu,
            LayerSpec::Tanh => StageOp::Tanh,
            LayerSpec::Sigmoid => StageOp::Sigmoid,
            LayerSpec::Softmax => StageOp::Softmax,
            LayerSpec::Dropout { p } => StageOp::Dropout(*p),
            LayerSpec::Repeat { .. } => unreachable!("the shapes were inferred"),
        };
        self.program.push(instruction);
    }

    fn op(&mut self, op: Op) {
        self.program.push(StageOp::Apply(self.ops.len()));
        self.drawn(op);
    }

    fn drawn(&mut self, op: Op) {
        op.visit(&mut Draw);
        self.ops.push(self.dtype.cast(op));
    }
}

/// Initialises every parameter that it visits.
struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let _drawn = param.val();
    }
}
