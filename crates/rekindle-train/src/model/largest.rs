//! The largest tensor that a training step must hold in one piece.
//!
//! A device may limit the size of one buffer, however much memory it has. Weights of linear layers, convolutions and
//! embeddings, what these and paddings compute, and the model's input are looked at. What a kernel takes for itself is not known here; outputs
//! of other layers are no larger than what they are computed from, or may never be there, where kernels are fused.

use std::fmt;

use rekindle_plan::Bytes;

use super::{
    cost::{ElementBytes, product},
    shape::{LayerShape, ModelShape},
    shape_error::LayerPath,
    spec::{LayerSpec, ModelSpec},
};
use crate::chunks::ChunkedSizes;
use rekindle::ChunkedCrossEntropy;

/// A tensor of a training step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargestTensor {
    /// Its bytes.
    pub bytes: Bytes,
    /// What it is.
    pub role: TensorRole,
}

/// What a tensor is to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorRole {
    /// The batch.
    Input,
    /// The weight of a layer, and its gradient.
    Weight {
        /// The layer.
        path: LayerPath,
        /// Its name in a config.
        kind: &'static str,
    },
    /// What a layer computes from a batch, and its gradient.
    Output {
        /// The layer.
        path: LayerPath,
        /// Its name in a config.
        kind: &'static str,
    },
}

/// `the weight of layer 2 (linear)`.
impl fmt::Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input => f.write_str("the model's input"),
            Self::Weight { path, kind } => write!(f, "the weight of layer {path} ({kind})"),
            Self::Output { path, kind } => write!(f, "the output of layer {path} ({kind})"),
        }
    }
}

impl LargestTensor {
    /// Finds it in steps on batches of so many samples. `shape` is what [`ModelSpec::infer`] gives for `model`.
    ///
    /// Where `loss` runs the last layer in chunks, one chunk's output counts.
    #[must_use]
    pub fn of(
        model: &ModelSpec,
        shape: &ModelShape,
        batch: usize,
        bytes: ElementBytes,
        loss: Option<ChunkedCrossEntropy>,
    ) -> Self {
        let batch = batch as u64;
        let input = shape.input.elements().saturating_mul(batch);
        let mut search = Search {
            chunked: loss.map(|loss| (model.layers.len().saturating_sub(1), loss)),
            batch,
            bytes,
            largest: Self {
                bytes: Bytes(input.saturating_mul(bytes.of(shape.input.kind))),
                role: TensorRole::Input,
            },
        };
        search.list(&model.layers, &shape.layers, &mut Vec::new());
        search.largest
    }
}

struct Search {
    /// The last layer, and the loss that runs it in chunks.
    chunked: Option<(usize, ChunkedCrossEntropy)>,
    batch: u64,
    bytes: ElementBytes,
    largest: LargestTensor,
}

impl Search {
    fn list(&mut self, layers: &[LayerSpec], shapes: &[LayerShape], path: &mut Vec<usize>) {
        for (index, (layer, shape)) in layers.iter().zip(shapes).enumerate() {
            path.push(index);
            self.layer(layer, shape, path);
            path.pop();
        }
    }

    fn layer(&mut self, layer: &LayerSpec, shape: &LayerShape, path: &mut Vec<usize>) {
        let bias = match layer {
            LayerSpec::Residual { layers } => return self.list(layers, &shape.inner, path),
            LayerSpec::Linear { out, bias } | LayerSpec::Conv2d { out, bias, .. } => match bias {
                true => *out as u64,
                false => 0,
            },
            LayerSpec::Embedding { .. }
            | LayerSpec::Unembedding { .. }
            | LayerSpec::ZeroPad { .. } => 0,
            LayerSpec::Attention { heads, .. } => {
                return self.attention(*heads, layer, shape, path);
            }
            _ => return,
        };
        let (path, kind) = (LayerPath(path.to_vec()), layer.kind());
        let weight = TensorRole::Weight {
            path: path.clone(),
            kind,
        };
        self.consider(shape.param_count.saturating_sub(bias), weight);
        let output = match self.chunked {
            Some((last, loss)) if path.0 == [last] => {
                let sizes = ChunkedSizes::of(loss, shape, self.batch);
                sizes.at_once.saturating_mul(sizes.classes)
            }
            _ => shape.output.elements().saturating_mul(self.batch),
        };
        self.consider(output, TensorRole::Output { path, kind });
    }

    /// One of its four weights, or what each place gives each other one in each head.
    fn attention(&mut self, heads: usize, layer: &LayerSpec, shape: &LayerShape, path: &[usize]) {
        let [length, dim] = [0, 1].map(|axis| shape.input.dims.get(axis).map_or(0, |&n| n as u64));
        let (path, kind) = (LayerPath(path.to_vec()), layer.kind());
        let weight = TensorRole::Weight {
            path: path.clone(),
            kind,
        };
        self.consider(dim.saturating_mul(dim), weight);
        let scores = product([self.batch, heads as u64, length, length]);
        let largest = scores.max(product([self.batch, length, dim]));
        self.consider(largest, TensorRole::Output { path, kind });
    }

    fn consider(&mut self, numbers: u64, role: TensorRole) {
        let bytes = Bytes(numbers.saturating_mul(self.bytes.float));
        if bytes > self.largest.bytes {
            self.largest = LargestTensor { bytes, role };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::SampleShape;
    use rekindle::dtype::Dtype;

    fn linear(out: usize) -> LayerSpec {
        LayerSpec::Linear { out, bias: true }
    }

    fn largest(layers: Vec<LayerSpec>, batch: usize, dtype: Dtype) -> LargestTensor {
        let model = ModelSpec {
            input: SampleShape::float([10]),
            layers,
        };
        let shape = model.infer().expect("a model");
        LargestTensor::of(&model, &shape, batch, ElementBytes::flex(dtype), None)
    }

    #[test]
    fn it_is_a_weight_an_output_or_the_input() {
        let layers = || {
            let inside = vec![linear(300), LayerSpec::Tanh, linear(20)];
            vec![linear(20), LayerSpec::Residual { layers: inside }]
        };
        let role = |batch| {
            let found = largest(layers(), batch, Dtype::F32);
            (found.role.to_string(), found.bytes.0)
        };
        // 20 x 300 numbers; of both weights of that size the first.
        let weight = "the weight of layer 1.0 (linear)".to_owned();
        assert_eq!(role(7), (weight, 24_000));
        let output = "the output of layer 1.0 (linear)".to_owned();
        assert_eq!(role(50), (output, 60_000));
        let half = largest(layers(), 50, Dtype::F16);
        assert_eq!(half.bytes, Bytes(30_000));
        let model = ModelSpec {
            input: SampleShape::float([10]),
            layers: vec![linear(600)],
        };
        let shape = model.infer().expect("a model");
        let in_chunks = |chunks| {
            let loss = ChunkedCrossEntropy::new().with_chunks(chunks);
            LargestTensor::of(&model, &shape, 50, ElementBytes::FLEX, Some(loss)).bytes
        };
        // 50 rows of 600 numbers, 17 of them, and the weight's 10.
        let expected = [120_000, 40_800, 24_000].map(Bytes);
        assert_eq!([1, 3, 50].map(in_chunks), expected);
        let input = largest(vec![linear(2)], 50, Dtype::F32);
        assert_eq!((input.role, input.bytes), (TensorRole::Input, Bytes(2_000)));
    }
}
