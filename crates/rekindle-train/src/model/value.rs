//! The activation of a model whose layers are known only at run time.
//!
//! burn's tensors carry their rank in their type; a model from a config cannot. A [`Value`] is a tensor of any of
//! the ranks that occur: numbers in two to four dimensions with the batch, or token ids in two.

use burn::tensor::{Device, Int, Tensor, TensorCreationOptions, TensorData};

use super::spec::{ElementKind, SampleShape};
use rekindle::{
    ChunkedCrossEntropy,
    tensor_tree::{TensorMapper, TensorTree, TensorVisitor},
};

/// A tensor whose rank is known at run time. The first dimension is the batch.
#[derive(Debug, Clone)]
pub enum Value {
    /// Numbers `[batch, a]`.
    Float2(Tensor<2>),
    /// Numbers `[batch, a, b]`.
    Float3(Tensor<3>),
    /// Numbers `[batch, a, b, c]`.
    Float4(Tensor<4>),
    /// Token ids `[batch, a]`.
    Tokens(Tensor<2, Int>),
    /// A model's output before its last layer, together with that layer, for a loss that runs it in chunks.
    Deferred(Box<Projection>),
}

/// Rows that the loss projects onto classes, and how.
#[derive(Debug, Clone)]
pub struct Projection {
    /// The rows `[rows, values]`.
    pub hidden: Tensor<2>,
    /// The projection's weight `[values, classes]`.
    pub weight: Tensor<2>,
    /// Its bias `[classes]`.
    pub bias: Option<Tensor<1>>,
    /// The loss that runs it.
    pub loss: ChunkedCrossEntropy,
}

/// Evaluates an expression for the tensor inside a value, for any rank and elements.
macro_rules! with_tensor {
    ($value:expr, $tensor:ident => $body:expr, $projection:ident => $deferred:expr) => {
        match $value {
            Value::Deferred($projection) => $deferred,
            Value::Float2($tensor) => $body,
            Value::Float3($tensor) => $body,
            Value::Float4($tensor) => $body,
            Value::Tokens($tensor) => $body,
        }
    };
}

macro_rules! variant {
    ($variant:ident, $tensor:ty, $into:ident, $wanted:literal) => {
        impl From<$tensor> for Value {
            fn from(tensor: $tensor) -> Self {
                Self::$variant(tensor)
            }
        }

        impl Value {
            #[doc = concat!("The tensor, where it holds ", $wanted, ".")]
            ///
            /// # Panics
            ///
            /// Where it does not.
            #[must_use]
            pub fn $into(self) -> $tensor {
                match self {
                    Self::$variant(tensor) => tensor,
                    other => panic!(
                        "one sample has the shape {}, but {} are wanted",
                        other.sample_shape(),
                        $wanted
                    ),
                }
            }
        }
    };
}

variant!(Float2, Tensor<2>, into_float2, "numbers of one dimension");
variant!(Float3, Tensor<3>, into_float3, "numbers of two dimensions");
variant!(
    Float4,
    Tensor<4>,
    into_float4,
    "numbers of three dimensions"
);
variant!(
    Tokens,
    Tensor<2, Int>,
    into_tokens,
    "token ids of one dimension"
);

impl Value {
    /// Numbers, row-major, of shape `shape` with the batch first; rounded on the host where the options have a type.
    ///
    /// # Panics
    ///
    /// If they do not fill the shape, or it has not two to four dimensions.
    #[must_use]
    pub fn from_floats(
        values: Vec<f32>,
        shape: &[usize],
        options: impl Into<TensorCreationOptions>,
    ) -> Self {
        let data = TensorData::new(values, shape.to_vec());
        match shape.len() {
            2 => Self::Float2(Tensor::from_data(data, options)),
            3 => Self::Float3(Tensor::from_data(data, options)),
            4 => Self::Float4(Tensor::from_data(data, options)),
            _ => panic!("numbers have two to four dimensions with the batch, not {shape:?}"),
        }
    }

    /// Token ids, row-major, of shape `shape` with the batch first.
    ///
    /// # Panics
    ///
    /// If they do not fill the shape, or it has not two dimensions.
    #[must_use]
    pub fn from_tokens(ids: Vec<i32>, shape: &[usize], device: &Device) -> Self {
        let data = TensorData::new(ids, shape.to_vec());
        Self::Tokens(Tensor::from_data(data, device))
    }

    /// Sizes of all dimensions, the batch first.
    #[must_use]
    pub fn dims(&self) -> Vec<usize> {
        with_tensor!(
            self,
            tensor => tensor.dims().to_vec(),
            projection => vec![projection.hidden.dims()[0], projection.weight.dims()[1]]
        )
    }

    /// Shape of one sample.
    #[must_use]
    pub fn sample_shape(&self) -> SampleShape {
        SampleShape {
            kind: match self {
                Self::Tokens(_) => ElementKind::Token,
                _ => ElementKind::Float,
            },
            dims: self.dims().split_off(1),
        }
    }

    /// The numbers `[rows, values]`: a row for each sample, or for each place of each sample.
    pub(crate) fn into_rows(self) -> Tensor<2> {
        match self {
            Self::Float3(tensor) => tensor.flatten(0, 1),
            other => other.into_float2(),
        }
    }

    /// The same numbers, those of a sample in one dimension.
    ///
    /// # Panics
    ///
    /// Where it does not hold numbers.
    #[must_use]
    pub fn flatten(self) -> Self {
        match self {
            Self::Float3(tensor) => tensor.flatten::<2>(1, 2).into(),
            Self::Float4(tensor) => tensor.flatten::<2>(1, 3).into(),
            other => other.into_float2().into(),
        }
    }
}

impl TensorTree for Value {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        with_tensor!(self, tensor => tensor.visit(visitor), projection => {
            projection.hidden.visit(visitor);
            projection.weight.visit(visitor);
            projection.bias.visit(visitor);
        });
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        with_tensor!(self, tensor => tensor.map(mapper).into(), projection => {
            Self::Deferred(Box::new(Projection {
                hidden: projection.hidden.map(mapper),
                weight: projection.weight.map(mapper),
                bias: TensorTree::map(projection.bias, mapper),
                loss: projection.loss,
            }))
        })
    }
}
