//! From a description to burn modules.
//!
//! All parameters are drawn here, stage by stage and layer by layer: burn's parameters are lazy by themselves, and
//! copies of a lazy one draw different values. So `B::seed` before [`build`] makes a model reproducible, and how
//! its layers are grouped into stages does not change a value. How they are drawn: see the module `init`.

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{
        BatchNormConfig, EmbeddingConfig, LayerNormConfig, LinearConfig, PaddingConfig2d,
        conv::Conv2dConfig,
    },
    tensor::{Tensor, backend::Backend},
};

use super::{
    init::{conv_fan_in, first_values},
    shape::LayerShape,
    shape_error::ShapeError,
    spec::{LayerSpec, ModelSpec},
    stage::{Instruction, Op, Stage},
    stages::StagePlan,
};

/// Why a model cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// A layer that cannot be.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The stages belong to another model.
    #[error(
        "the stages cover {planned} layers, but the model has {layers}; plan the stages of this model"
    )]
    OtherModel {
        /// Layers that the stages cover, one after the other from the first.
        planned: usize,
        /// Layers of the model.
        layers: usize,
    },
}

/// Builds a module for each stage, with all parameters drawn.
///
/// Memory: the parameters, plus the largest one once more while it is drawn.
///
/// # Errors
///
/// A model whose shapes don't fit, or stages that don't cover its layers in order.
pub fn build<B: Backend>(
    model: &ModelSpec,
    plan: &StagePlan,
    device: &B::Device,
) -> Result<Vec<Stage<B>>, BuildError> {
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
    Ok(plan
        .stages
        .iter()
        .map(|stage| {
            let mut builder = StageBuilder {
                ops: Vec::new(),
                program: Vec::new(),
                device,
            };
            for index in stage.layers.clone() {
                builder.layer(
                    &model.layers[index],
                    &shape.layers[index],
                    &model.layers[index + 1..],
                );
            }
            let input = shape.layers[stage.layers.start].input.clone();
            Stage::new(builder.ops, builder.program, input)
        })
        .collect())
}

struct StageBuilder<'a, B: Backend> {
    ops: Vec<Op<B>>,
    program: Vec<Instruction>,
    device: &'a B::Device,
}

impl<B: Backend> StageBuilder<'_, B> {
    /// Adds one layer; `follow` are the layers after it in its list.
    fn layer(&mut self, spec: &LayerSpec, shape: &LayerShape, follow: &[LayerSpec]) {
        let first = shape.input.dims.first().copied().unwrap_or(0);
        let last = shape.input.dims.last().copied().unwrap_or(0);
        let instruction = match spec {
            LayerSpec::Linear { out, bias } => {
                let values = first_values(follow, last as f64, *bias);
                let config = LinearConfig::new(last, *out)
                    .with_bias(false)
                    .with_initializer(values.weight);
                let mut linear = config.init(self.device);
                linear.bias = bias.then(|| values.bias.init([*out], self.device));
                return self.op(Op::Linear(linear));
            }
            LayerSpec::Conv2d {
                out,
                kernel,
                stride,
                padding,
                bias,
            } => {
                let padding = padding.each_side(*kernel);
                let values = first_values(
                    follow,
                    conv_fan_in(&shape.input, *kernel, *stride, padding),
                    *bias,
                );
                let [rows, columns] = padding;
                let config = Conv2dConfig::new([first, *out], *kernel)
                    .with_stride(*stride)
                    .with_padding(PaddingConfig2d::Explicit(rows, columns, rows, columns))
                    .with_bias(false)
                    .with_initializer(values.weight);
                let mut conv = config.init(self.device);
                conv.bias = bias.then(|| values.bias.init([*out], self.device));
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
                return self.op(Op::Embedding(
                    EmbeddingConfig::new(*vocab, *dim).init(self.device),
                ));
            }
            LayerSpec::Residual { layers } => {
                self.program.push(Instruction::PushSkip);
                for (index, (spec, shape)) in layers.iter().zip(&shape.inner).enumerate() {
                    self.layer(spec, shape, &layers[index + 1..]);
                }
                Instruction::AddSkip
            }
            LayerSpec::MaxPool2d(pool) => Instruction::MaxPool(*pool),
            LayerSpec::AvgPool2d(pool) => Instruction::AvgPool(*pool),
            LayerSpec::Flatten | LayerSpec::Reshape { .. } => {
                Instruction::Reshape(shape.output.dims.clone())
            }
            LayerSpec::Relu => Instruction::Relu,
            LayerSpec::Gelu => Instruction::Gelu,
            LayerSpec::Tanh => Instruction::Tanh,
            LayerSpec::Sigmoid => Instruction::Sigmoid,
            LayerSpec::Softmax => Instruction::Softmax,
            LayerSpec::Dropout { p } => Instruction::Dropout(*p),
            LayerSpec::ZeroPad { padding } => Instruction::ZeroPad(*padding),
        };
        self.program.push(instruction);
    }

    fn op(&mut self, op: Op<B>) {
        op.visit(&mut Draw);
        self.program.push(Instruction::Apply(self.ops.len()));
        self.ops.push(op);
    }
}

/// Draws every parameter that it sees.
struct Draw;

impl<B: Backend> ModuleVisitor<B> for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let _drawn = param.val();
    }
}
