//! What a stage's forward and backward hold for a while, from its shapes alone.
//!
//! A stage is walked layer by layer as burn runs it: outputs appear, what a layer keeps stays (the table of
//! [`cost`](super::cost)), what nobody holds any more goes. Each layer adds what it needs for itself while it runs.
//! With `I`, `O` and `W` the bytes of its input, its output and its weight:
//!
//! | layer | its forward, beyond `I` and `O` | its backward, beyond what it keeps and the gradient of `O` |
//! |---|---|---|
//! | linear | `O` | `2I`, then `I + 2W`; `I + 2LW` for `L` matrices in a batch |
//! | conv2d | `I + W`, and a tile a thread | `I` and the windows of one sample, then `3I + 2O + W` and a tile a thread; one `O` less without bias |
//! | batch_norm | `O` | `4I`; `2I` for samples of one dimension, which need not be laid out anew |
//! | layer_norm | a copy, if nothing is kept | `2I` |
//! | max_pool2d | positions of 8 bytes | `I` |
//! | softmax, dropout | what a tracked one would keep, if nothing is kept | `2I` for softmax, else `I` |
//! | tanh, sigmoid | | `2I` |
//! | the rest | | `I` |
//!
//! The doubled matrices and the convolution's copies are those of burn's `flex` kernels: a matrix product is copied
//! once to align it; a convolution lays out channels last, and tiles of 512 positions; the gradient of its kernel is
//! a convolution of images with images. [`Kernels::Device`] counts outputs alone.

use super::{
    cost::{Counter, LayerCost, product},
    kernels::Kernels,
    shape::LayerShape,
    spec::{ElementKind, LayerSpec},
};

/// Bytes of a position that a max pooling on the processor finds, before it is stored as the graph keeps it.
const FOUND_POSITION: u64 = 8;
/// Positions that a convolution on the processor lays out at once.
const TILE: u64 = 512;
/// At most so many channels in and out run without copies.
const FEW_CHANNELS: (usize, usize) = (4, 16);

/// What a stage's passes hold besides its input and what stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passes {
    /// An untracked forward, besides the output.
    pub(crate) forward_temp: u64,
    /// A tracked one, besides what it saves.
    pub(crate) tracked_temp: u64,
    /// The backward, besides what was saved, the gradients of output and input, and of the parameters.
    pub(crate) backward_temp: u64,
    /// The same, if the output was let go of before.
    pub(crate) released_backward_temp: u64,
    /// Whether the graph holds the input.
    pub(crate) holds_input: bool,
    /// Whether the graph holds the output.
    pub(crate) holds_output: bool,
    /// Bytes read and written by one forward.
    pub(crate) touched: u64,
}

type Layers<'a> = [(&'a LayerSpec, &'a LayerShape)];

impl Passes {
    /// Walks through a stage. `tracked` tells whether its input wants a gradient; `cost` is the stage's.
    pub(crate) fn new(
        counter: Counter,
        kernels: Kernels,
        layers: &Layers<'_>,
        tracked: bool,
        cost: &LayerCost,
    ) -> Self {
        let rules = Rules { counter, kernels };
        let mut untracked = Walk::new(rules, false);
        let _ = untracked.forward(layers, Flow { at: 0, tracked });
        let mut walk = Walk::new(rules, true);
        let output = walk.forward(layers, Flow { at: 0, tracked });
        let forward_peak = walk.peak;
        let holds_input = walk.buffers[0].holders > 1;
        let holds_output = output.at == 0 || walk.buffers[output.at].holders > 1;
        let input_bytes = layers
            .first()
            .map_or(0, |(_, shape)| counter.activation(&shape.input));
        let backward_peak = walk.backward(output, cost.output_bytes);
        let leaves = sum([
            cost.output_bytes,
            if tracked { input_bytes } else { 0 },
            cost.param_bytes,
        ]);
        let released = if holds_output { 0 } else { cost.output_bytes };
        Self {
            forward_temp: untracked.peak.saturating_sub(cost.output_bytes),
            tracked_temp: forward_peak.saturating_sub(cost.saved_bytes),
            backward_temp: backward_peak.saturating_sub(sum([cost.saved_bytes, leaves])),
            released_backward_temp: backward_peak
                .saturating_sub(sum([cost.saved_bytes.saturating_sub(released), leaves])),
            holds_input,
            holds_output,
            touched: untracked.touched,
        }
    }
}

/// An activation on its way.
#[derive(Clone, Copy)]
struct Flow {
    at: usize,
    tracked: bool,
}

struct Buffer {
    bytes: u64,
    holders: u32,
}

/// What a backward meets, in the forward's order.
enum Step<'a> {
    Layer {
        spec: &'a LayerSpec,
        shape: &'a LayerShape,
        kept_input: Option<usize>,
        inside: u64,
        wants_input_gradient: bool,
    },
    /// A residual's input, which goes two ways.
    Fork { tracked: bool },
    /// Where both ways meet.
    Join { skip_tracked: bool },
}

/// Memory while a stage runs; buffer 0 is its input, which others hold.
struct Walk<'a> {
    rules: Rules,
    keeps: bool,
    buffers: Vec<Buffer>,
    live: u64,
    peak: u64,
    touched: u64,
    steps: Vec<Step<'a>>,
}

impl<'a> Walk<'a> {
    fn new(rules: Rules, keeps: bool) -> Self {
        Self {
            rules,
            keeps,
            buffers: vec![Buffer {
                bytes: 0,
                holders: 1,
            }],
            live: 0,
            peak: 0,
            touched: 0,
            steps: Vec::new(),
        }
    }

    fn allocate(&mut self, bytes: u64) -> usize {
        self.live = sum([self.live, bytes]);
        self.peak = self.peak.max(self.live);
        self.buffers.push(Buffer { bytes, holders: 1 });
        self.buffers.len() - 1
    }

    fn hold(&mut self, at: usize) {
        self.buffers[at].holders += 1;
    }

    fn release(&mut self, at: usize) {
        let buffer = &mut self.buffers[at];
        buffer.holders = buffer.holders.saturating_sub(1);
        if buffer.holders == 0 {
            self.live = self.live.saturating_sub(buffer.bytes);
        }
    }

    /// The input's holder keeps it, whoever else lets go of it.
    fn let_go_of_value(&mut self, at: usize) {
        if at != 0 {
            self.release(at);
        }
    }

    fn reach(&mut self, beyond: u64) {
        self.peak = self.peak.max(sum([self.live, beyond]));
    }

    fn forward(&mut self, layers: &Layers<'a>, input: Flow) -> Flow {
        layers
            .iter()
            .fold(input, |flow, (spec, shape)| self.layer(spec, shape, flow))
    }

    fn layer(&mut self, spec: &'a LayerSpec, shape: &'a LayerShape, input: Flow) -> Flow {
        if spec.is_view() {
            return input;
        }
        let counter = self.rules.counter;
        let (read, written) = (
            counter.activation(&shape.input),
            counter.activation(&shape.output),
        );
        if let LayerSpec::Residual { layers } = spec {
            self.steps.push(Step::Fork {
                tracked: input.tracked,
            });
            self.hold(input.at);
            let inner: Vec<_> = layers.iter().zip(&shape.inner).collect();
            let inner = self.forward(&inner, input);
            let output = self.allocate(written);
            self.touched = sum([self.touched, product([3, written])]);
            self.release(input.at);
            self.let_go_of_value(inner.at);
            self.steps.push(Step::Join {
                skip_tracked: input.tracked,
            });
            return Flow {
                at: output,
                tracked: input.tracked || inner.tracked,
            };
        }
        let tracked = input.tracked || shape.param_count > 0;
        let kept = counter.kept(spec, shape, input.tracked);
        let stays = self.keeps && tracked;
        let inside = if stays { kept.inside } else { 0 };
        let temp = self.rules.forward_temp(spec, shape, stays);
        self.reach(sum([written, inside, temp]));
        self.touched = sum([self.touched, read, written, product([2, kept.inside])]);
        let output = self.allocate(written);
        self.live = sum([self.live, inside]);
        let kept_input = (stays && kept.input).then_some(input.at);
        if let Some(at) = kept_input {
            self.hold(at);
        }
        self.let_go_of_value(input.at);
        if tracked {
            self.steps.push(Step::Layer {
                spec,
                shape,
                kept_input,
                inside,
                wants_input_gradient: input.tracked,
            });
        }
        Flow {
            at: output,
            tracked,
        }
    }

    /// Runs the steps back and returns the peak.
    fn backward(&mut self, output: Flow, output_bytes: u64) -> u64 {
        let mut gradient = Some(self.allocate(output_bytes));
        self.let_go_of_value(output.at);
        self.peak = self.live;
        let mut skips = Vec::new();
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Layer {
                    spec,
                    shape,
                    kept_input,
                    inside,
                    wants_input_gradient,
                } => {
                    let temp = self.rules.backward_temp(spec, shape, wants_input_gradient);
                    self.reach(temp);
                    let counter = self.rules.counter;
                    let params = product([shape.param_count, counter.bytes.float]);
                    self.live = sum([self.live, params]);
                    let next = wants_input_gradient
                        .then(|| self.allocate(counter.activation(&shape.input)));
                    if let Some(at) = kept_input {
                        self.release(at);
                    }
                    self.live = self.live.saturating_sub(inside);
                    if let Some(before) = gradient {
                        self.release(before);
                    }
                    gradient = next;
                }
                Step::Join { skip_tracked } => {
                    let skip = gradient.filter(|_| skip_tracked);
                    if let Some(at) = skip {
                        self.hold(at);
                    }
                    skips.push(skip);
                }
                Step::Fork { tracked } => {
                    let skip = skips.pop().flatten();
                    // The sum takes the place of the inner gradient.
                    if let (true, Some(at)) = (tracked, skip) {
                        self.release(at);
                    }
                }
            }
        }
        self.peak
    }
}

#[derive(Clone, Copy)]
struct Rules {
    counter: Counter,
    kernels: Kernels,
}

impl Rules {
    fn forward_temp(self, spec: &LayerSpec, shape: &LayerShape, stays: bool) -> u64 {
        let output = self.counter.activation(&shape.output);
        match (spec, self.kernels) {
            (LayerSpec::Linear { .. } | LayerSpec::Unembedding { .. }, Kernels::Host { .. }) => {
                output
            }
            (LayerSpec::Conv2d { out, kernel, .. }, Kernels::Host { threads, .. }) => {
                let channels = first(shape);
                let point = *kernel == [1, 1];
                if point || (channels <= FEW_CHANNELS.0 && *out <= FEW_CHANNELS.1) {
                    return 0;
                }
                let window = product([channels as u64, kernel[0] as u64, kernel[1] as u64]);
                let positions = (shape.output.elements() / (*out as u64).max(1)).min(TILE);
                let float = self.counter.bytes.float;
                let tile = product([sum([window, *out as u64]), positions, float]);
                sum([
                    self.counter.activation(&shape.input),
                    product([window, *out as u64, float]),
                    product([threads.min(self.counter.batch), tile]),
                ])
            }
            (LayerSpec::MaxPool2d(_), Kernels::Host { .. }) => {
                product([self.counter.batch, shape.output.elements(), FOUND_POSITION])
            }
            (LayerSpec::BatchNorm { .. }, _) => output,
            (LayerSpec::Attention { heads, .. }, _) => {
                let scores = self.counter.scores(*heads, shape);
                match stays {
                    true => output.max(scores),
                    false => sum([product([3, output]), product([2, scores])]),
                }
            }
            (LayerSpec::LayerNorm { .. }, _) if !stays => output,
            (LayerSpec::Softmax | LayerSpec::Dropout { .. } | LayerSpec::MaxPool2d(_), _)
                if !stays =>
            {
                self.counter.kept(spec, shape, true).inside
            }
            _ => 0,
        }
    }

    /// The most that a layer's backward adds, the gradients that it leaves included.
    fn backward_temp(self, spec: &LayerSpec, shape: &LayerShape, wants_input: bool) -> u64 {
        let float = self.counter.bytes.float;
        let input = match shape.input.kind {
            ElementKind::Float if wants_input => self.counter.activation(&shape.input),
            _ => 0,
        };
        match (spec, self.kernels) {
            (LayerSpec::Linear { out, .. } | LayerSpec::Unembedding { vocab: out }, kernels) => {
                let features = shape.input.dims.last().copied().unwrap_or(1) as u64;
                let weight = product([features, *out as u64, float]);
                // Every matrix gives a gradient of its own before they are summed.
                let matrices = matrices(self.counter.batch, &shape.input.dims, *out);
                let copies = match kernels {
                    Kernels::Host { .. } => 2,
                    Kernels::Device => 1,
                };
                let weights = sum([input, product([copies, matrices, weight])]);
                weights.max(product([copies, input]))
            }
            (
                LayerSpec::Conv2d {
                    out, kernel, bias, ..
                },
                Kernels::Host { threads, .. },
            ) => {
                let area = product([kernel[0] as u64, kernel[1] as u64]);
                let channels = first(shape) as u64;
                let outputs = self.counter.activation(&shape.output);
                let positions = shape.output.elements() / (*out as u64).max(1);
                let columns = product([channels, area, positions, float]);
                let tile = product([
                    sum([product([self.counter.batch, positions]), *out as u64]),
                    area.min(TILE),
                    float,
                ]);
                let weight = product([channels, *out as u64, area, float]);
                let weights = sum([
                    input,
                    product([2, self.counter.activation(&shape.input)]),
                    // Without a bias, nobody needs the gradient of `O` once it is laid out.
                    product([if *bias { 2 } else { 1 }, outputs]),
                    weight,
                    product([threads.min(channels), tile]),
                ]);
                if wants_input {
                    weights.max(sum([input, columns]))
                } else {
                    weights
                }
            }
            (
                LayerSpec::Tanh
                | LayerSpec::Sigmoid
                | LayerSpec::Softmax
                | LayerSpec::LayerNorm { .. },
                _,
            ) => product([2, input]),
            (LayerSpec::Attention { heads, .. }, _) => {
                let scores = self.counter.scores(*heads, shape);
                sum([product([4, input]), product([3, scores])])
            }
            // The gradient of its input is computed whether it is wanted or not.
            (LayerSpec::BatchNorm { .. }, _) => {
                let copies = if shape.input.dims.len() == 1 { 2 } else { 4 };
                product([copies, self.counter.activation(&shape.input)])
            }
            _ => input,
        }
    }
}

/// Matrices that a linear layer with so many outputs multiplies one by one, where a sample has the shape `dims`.
///
/// burn makes one matrix of all samples where their rows do not fill its tiles by themselves and the product comes
/// closer to a square (burn-std, tensor/matmul.rs).
fn matrices(batch: u64, dims: &[usize], out: usize) -> u64 {
    const ROW_TILE: u64 = 32;
    let [outer @ .., rows, _] = dims else {
        return 1;
    };
    let samples = outer
        .iter()
        .fold(batch, |samples, &size| samples.saturating_mul(size as u64));
    let (rows, out) = (*rows as u64, out as u64);
    let merged = samples.saturating_mul(rows);
    let is_squarer =
        product([merged.min(out), rows.max(out)]) > product([rows.min(out), merged.max(out)]);
    if !rows.is_multiple_of(ROW_TILE) && is_squarer {
        1
    } else {
        samples
    }
}

/// Channels of a layer's input.
fn first(shape: &LayerShape) -> usize {
    shape.input.dims.first().copied().unwrap_or(1)
}

fn sum<const N: usize>(terms: [u64; N]) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}
