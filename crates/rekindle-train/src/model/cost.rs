//! Bytes and multiply-adds of a model's layers and stages, from its shapes alone.
//!
//! `saved_bytes` counts what a tracked forward leaves alive for the backward, which is decided by the operations
//! that burn's autodiff (without its own checkpointing) records. With `N` values in the layer's output, `M` rows
//! (`N` / last dimension) and `C` channels, in values unless said otherwise:
//!
//! | layer | keeps its input | keeps besides, on a tracked input | on an untracked input |
//! |---|---|---|---|
//! | linear, conv2d | yes | | |
//! | relu, gelu, tanh, sigmoid | if tracked | | |
//! | avg_pool2d | if tracked | | |
//! | max_pool2d | if tracked | `N` indices | |
//! | softmax | no | shifted, exponential: `2N`; their sum: `M` | |
//! | dropout, `p > 0` | no | mask: `N` | |
//! | batch_norm | yes | mean, variance: `2C` | the same |
//! | layer_norm | no | centred, normalised: `2N`; variance, deviation: `2M` | normalised: `N` |
//! | embedding | yes (ids) | | |
//! | unembedding | yes | | |
//! | attention, `H` heads of `L` places: `S = batch H L^2` scores | yes | query, key, value, context: `4N`; scores shifted, their exponentials and shares: `3S`; sums: `S / L`; a mask of `batch L^2` bytes | the same |
//! | positions, zero_pad, residual's sum | no | | |
//! | flatten, reshape, dropout with `p = 0` | the output *is* the input | | |
//!
//! The output is always counted, the input never; parameters are counted apart. A value between two layers of one
//! stage is alive only if the layer after it keeps its input, and it is alive once, however many views it has.
//! A value is tracked from the first layer with parameters on: the model's input needs no gradient.
//!
//! Headers of tensors and graph nodes (some hundred bytes an operation) are not counted.

use super::{
    shape::{LayerShape, ModelShape},
    spec::{ElementKind, LayerSpec, ModelSpec, SampleShape},
    stages::StagePlan,
};
use rekindle::dtype::Dtype;

/// Bytes of one value of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementBytes {
    /// A number.
    pub float: u64,
    /// A token id.
    pub token: u64,
    /// A position that a max pooling remembers.
    pub index: u64,
}

impl ElementBytes {
    /// burn's `flex` backend: `f32` numbers, `i32` token ids and pooling positions.
    pub const FLEX: Self = Self {
        float: 4,
        token: 4,
        index: 4,
    };

    /// The same with numbers of another type.
    #[must_use]
    pub fn flex(dtype: Dtype) -> Self {
        Self {
            float: dtype.bytes(),
            ..Self::FLEX
        }
    }

    pub(super) fn of(self, kind: ElementKind) -> u64 {
        match kind {
            ElementKind::Float => self.float,
            ElementKind::Token => self.token,
        }
    }
}

/// What one layer, or one stage, costs at one batch size.
///
/// Sums and products stop at `u64::MAX`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// The output activation. A view has one too, although it takes no memory of its own.
    pub output_bytes: u64,
    /// All that a tracked forward keeps for the backward, the output included, the input and the parameters not.
    pub saved_bytes: u64,
    /// Number of values that training changes.
    pub param_count: u64,
    /// Those values. Their gradients are as large.
    pub param_bytes: u64,
    /// Running statistics: the current ones, and the update that waits for the next forward.
    pub state_bytes: u64,
    /// Multiplications with an addition, in the matrix products of one forward.
    pub multiply_adds: u64,
}

/// What a model costs at one batch size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCost {
    /// The input activation.
    pub input_bytes: u64,
    /// Each layer of the model's list, as if it were a stage by itself.
    pub layers: Vec<LayerCost>,
    /// Each stage. Its `saved_bytes` may be less than the sum over its layers, because its inner values are alive
    /// only where a layer keeps its input.
    pub stages: Vec<LayerCost>,
}

impl ModelCost {
    /// Counts a model. `shape` and `plan` are what [`ModelSpec::infer`] and [`StagePlan::new`] give for `model`.
    #[must_use]
    pub fn new(
        model: &ModelSpec,
        shape: &ModelShape,
        plan: &StagePlan,
        batch: usize,
        bytes: ElementBytes,
    ) -> Self {
        let counter = Counter {
            batch: batch as u64,
            bytes,
        };
        let pairs: Vec<(&LayerSpec, &LayerShape)> =
            model.layers.iter().zip(&shape.layers).collect();
        let tracked: Vec<bool> = shape
            .layers
            .iter()
            .scan(false, |tracked, layer| {
                let before = *tracked;
                *tracked |= layer.param_count > 0;
                Some(before)
            })
            .collect();
        let cost = |range: std::ops::Range<usize>| {
            let tracked = tracked.get(range.start).copied().unwrap_or(false);
            counter.run_cost(pairs.get(range).unwrap_or_default(), tracked)
        };
        Self {
            input_bytes: counter.activation(&shape.input),
            layers: (0..pairs.len())
                .map(|index| cost(index..index + 1))
                .collect(),
            stages: plan
                .stages
                .iter()
                .map(|stage| cost(stage.layers.clone()))
                .collect(),
        }
    }
}

/// Memory that layers make on their way: which of it stays.
struct Ledger {
    /// Bytes of each activation's memory, and whether a layer keeps it. The first is the input of the run.
    buffers: Vec<(u64, bool)>,
    /// What layers keep besides activations.
    inside: u64,
}

/// An activation on its way through the layers.
#[derive(Clone, Copy)]
struct Flow {
    /// Its memory, in [`Ledger::buffers`].
    buffer: usize,
    tracked: bool,
}

impl Ledger {
    fn keep(&mut self, flow: Flow) {
        self.buffers[flow.buffer].1 = true;
    }

    fn add(&mut self, bytes: u64, tracked: bool) -> Flow {
        self.buffers.push((bytes, false));
        Flow {
            buffer: self.buffers.len() - 1,
            tracked,
        }
    }

    fn keep_inside(&mut self, bytes: u64) {
        self.inside = self.inside.saturating_add(bytes);
    }
}

/// What one layer's tracked forward keeps besides its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Whether its input.
    pub(super) input: bool,
    /// Bytes of values of its own.
    pub(super) inside: u64,
}

/// Counts at one batch size.
#[derive(Clone, Copy)]
pub(crate) struct Counter {
    pub(crate) batch: u64,
    pub(crate) bytes: ElementBytes,
}

impl Counter {
    pub(super) fn activation(self, shape: &SampleShape) -> u64 {
        product([self.batch, shape.elements(), self.bytes.of(shape.kind)])
    }

    pub(super) fn run_cost(self, layers: &[(&LayerSpec, &LayerShape)], tracked: bool) -> LayerCost {
        let mut ledger = Ledger {
            buffers: vec![(0, false)],
            inside: 0,
        };
        let mut flow = Flow { buffer: 0, tracked };
        let mut cost = LayerCost::default();
        for (spec, shape) in layers {
            flow = self.follow(spec, shape, flow, &mut ledger);
            cost.output_bytes = self.activation(&shape.output);
            cost.param_count = cost.param_count.saturating_add(shape.param_count);
            cost.state_bytes = cost.state_bytes.saturating_add(self.state(spec, shape));
            cost.multiply_adds = cost
                .multiply_adds
                .saturating_add(self.multiply_adds(spec, shape));
        }
        ledger.keep(flow);
        let kept = ledger.buffers[1..].iter().filter(|(_, kept)| *kept);
        cost.saved_bytes = kept.fold(ledger.inside, |sum, (bytes, _)| sum.saturating_add(*bytes));
        cost.param_bytes = cost.param_count.saturating_mul(self.bytes.float);
        cost
    }

    /// Books what one layer keeps (the table above) and returns its output.
    fn follow(
        self,
        spec: &LayerSpec,
        shape: &LayerShape,
        input: Flow,
        ledger: &mut Ledger,
    ) -> Flow {
        if spec.is_view() {
            return input;
        }
        let output = self.activation(&shape.output);
        if let LayerSpec::Residual { layers } = spec {
            let inner = layers
                .iter()
                .zip(&shape.inner)
                .fold(input, |flow, (spec, shape)| {
                    self.follow(spec, shape, flow, ledger)
                });
            return ledger.add(output, input.tracked || inner.tracked);
        }
        let kept = self.kept(spec, shape, input.tracked);
        if kept.input {
            ledger.keep(input);
        }
        ledger.keep_inside(kept.inside);
        ledger.add(output, input.tracked || shape.param_count > 0)
    }

    /// The table above, for one layer that is neither a view nor a residual.
    pub(super) fn kept(self, spec: &LayerSpec, shape: &LayerShape, tracked: bool) -> Kept {
        let output = self.activation(&shape.output);
        let values = self.batch.saturating_mul(shape.output.elements());
        let last = shape.input.dims.last().copied().unwrap_or(1) as u64;
        let rows = values
            .checked_div(last)
            .unwrap_or(0)
            .saturating_mul(self.bytes.float);
        let first = shape.input.dims.first().copied().unwrap_or(1) as u64;
        let channels = first.saturating_mul(self.bytes.float);
        let (input, inside) = match spec {
            LayerSpec::Linear { .. }
            | LayerSpec::Conv2d { .. }
            | LayerSpec::Embedding { .. }
            | LayerSpec::Unembedding { .. } => (true, 0),
            LayerSpec::Relu
            | LayerSpec::Gelu
            | LayerSpec::Tanh
            | LayerSpec::Sigmoid
            | LayerSpec::AvgPool2d(_) => (tracked, 0),
            LayerSpec::MaxPool2d(_) if tracked => (true, values.saturating_mul(self.bytes.index)),
            LayerSpec::Softmax if tracked => (false, product([2, output]).saturating_add(rows)),
            LayerSpec::Dropout { .. } if tracked => (false, output),
            LayerSpec::BatchNorm { .. } => (true, product([2, channels])),
            LayerSpec::LayerNorm { .. } if tracked => (
                false,
                product([2, output]).saturating_add(product([2, rows])),
            ),
            LayerSpec::LayerNorm { .. } => (false, output),
            LayerSpec::Attention { heads, causal } => {
                let scores = self.scores(*heads, shape);
                let mask = product([u64::from(*causal), self.batch, first, first]);
                let sums = scores.checked_div(first).unwrap_or(0);
                let kept = [product([4, output]), product([3, scores]), sums, mask];
                (true, kept.into_iter().fold(0, u64::saturating_add))
            }
            LayerSpec::MaxPool2d(_)
            | LayerSpec::Softmax
            | LayerSpec::Dropout { .. }
            | LayerSpec::Positions
            | LayerSpec::ZeroPad { .. }
            | LayerSpec::Flatten
            | LayerSpec::Reshape { .. }
            | LayerSpec::Residual { .. } => (false, 0),
        };
        Kept { input, inside }
    }

    /// Bytes of an attention's scores.
    pub(super) fn scores(self, heads: usize, shape: &LayerShape) -> u64 {
        let length = shape.input.dims.first().copied().unwrap_or(0) as u64;
        product([self.batch, heads as u64, length, length, self.bytes.float])
    }

    fn state(self, spec: &LayerSpec, shape: &LayerShape) -> u64 {
        match spec {
            LayerSpec::BatchNorm { .. } => {
                let channels = shape.input.dims.first().copied().unwrap_or(0) as u64;
                product([4, channels, self.bytes.float])
            }
            LayerSpec::Residual { layers } => {
                let inner = layers.iter().zip(&shape.inner);
                inner.fold(0, |sum, (spec, shape)| {
                    sum.saturating_add(self.state(spec, shape))
                })
            }
            _ => 0,
        }
    }

    pub(super) fn multiply_adds(self, spec: &LayerSpec, shape: &LayerShape) -> u64 {
        let outputs = self.batch.saturating_mul(shape.output.elements());
        match spec {
            LayerSpec::Linear { .. } | LayerSpec::Unembedding { .. } => product([
                outputs,
                shape.input.dims.last().copied().unwrap_or(0) as u64,
            ]),
            LayerSpec::Conv2d {
                kernel: [height, width],
                ..
            } => {
                let channels = shape.input.dims.first().copied().unwrap_or(0) as u64;
                product([outputs, channels, *height as u64, *width as u64])
            }
            LayerSpec::Attention { .. } => {
                let length = shape.input.dims.first().copied().unwrap_or(0) as u64;
                let dim = shape.input.dims.last().copied().unwrap_or(0) as u64;
                let maps = product([4, outputs, dim]);
                maps.saturating_add(product([2, outputs, length]))
            }
            LayerSpec::Residual { layers } => {
                let inner = layers.iter().zip(&shape.inner);
                inner.fold(0, |sum, (spec, shape)| {
                    sum.saturating_add(self.multiply_adds(spec, shape))
                })
            }
            _ => 0,
        }
    }
}

pub(super) fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::{
        super::spec::{Padding, PoolSpec},
        *,
    };

    fn cost(input: SampleShape, layers: Vec<LayerSpec>, batch: usize) -> ModelCost {
        let model = ModelSpec { input, layers };
        let shape = model.infer().unwrap();
        let plan = StagePlan::new(&model, &shape);
        ModelCost::new(&model, &shape, &plan, batch, ElementBytes::FLEX)
    }

    #[test]
    fn a_small_model_adds_up_by_hand() {
        let conv = LayerSpec::Conv2d {
            out: 4,
            kernel: [3, 3],
            stride: [1, 1],
            padding: Padding::Same,
            bias: true,
        };
        let pool = LayerSpec::MaxPool2d(PoolSpec {
            kernel: [2, 2],
            stride: [2, 2],
            padding: [0, 0],
        });
        let layers = vec![
            conv,
            pool,
            LayerSpec::Flatten,
            LayerSpec::Linear { out: 3, bias: true },
        ];
        let cost = cost(SampleShape::float([2, 4, 4]), layers, 5);
        assert_eq!(cost.input_bytes, 5 * 32 * 4);
        assert_eq!(
            cost.stages,
            [
                LayerCost {
                    output_bytes: 5 * 64 * 4,
                    saved_bytes: 5 * 64 * 4,
                    param_count: 4 * 2 * 9 + 4,
                    param_bytes: 4 * (4 * 2 * 9 + 4),
                    state_bytes: 0,
                    multiply_adds: 5 * 64 * 2 * 9,
                },
                // Four bytes of output and four of index for each of 16 values.
                LayerCost {
                    output_bytes: 5 * 16 * 4,
                    saved_bytes: 5 * 16 * 8,
                    ..LayerCost::default()
                },
                LayerCost {
                    output_bytes: 5 * 3 * 4,
                    saved_bytes: 5 * 3 * 4,
                    param_count: 16 * 3 + 3,
                    param_bytes: 4 * (16 * 3 + 3),
                    state_bytes: 0,
                    multiply_adds: 5 * 3 * 16,
                },
            ]
        );
        assert_eq!(
            cost.layers[2],
            LayerCost {
                output_bytes: 5 * 16 * 4,
                ..LayerCost::default()
            }
        );
    }

    #[test]
    fn a_batch_beyond_any_machine_does_not_overflow() {
        let layers = vec![
            LayerSpec::Linear {
                out: 1 << 20,
                bias: true,
            },
            LayerSpec::BatchNorm {
                epsilon: 1e-5,
                momentum: 0.1,
            },
        ];
        let cost = cost(SampleShape::float([1 << 20]), layers, usize::MAX);
        assert_eq!(cost.stages[1].saved_bytes, u64::MAX);
    }
}
