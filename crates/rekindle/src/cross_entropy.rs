//! Cross entropy of a projection onto a large vocabulary, without the logits: [`ChunkedCrossEntropy`].
//!
//! With tokens `n`, hidden values `h` of shape `[N, d]`, a weight `W` `[d, V]`, a bias `b` `[V]`, targets `t` and
//! logits `z = h W + b`, the loss is `1/N sum_n ( log sum_v exp z_nv - z_nt )`. Its gradient with respect to `z_n` is
//! `(softmax z_n - onehot t_n) / N`, which does not depend on the other tokens. So tokens are processed in chunks of
//! `c`, and each chunk's gradients with respect to `h`, `W` and `b` are computed in the forward pass, as soon as its
//! logits exist. One chunk's logits are freed before the next chunk's are computed, and no logits are computed twice
//! (as in Liger Kernel, Hsu et al. 2024, arXiv 2410.10989). The backward pass multiplies these gradients by the
//! incoming one.
//!
//! | memory | whole | in chunks |
//! |---|---|---|
//! | logits and values computed from them | `2 N V` or more | `c V` where the backend works in place |
//! | gradients | of `h`, `W`, `b`, in the backward pass | the same, from the forward pass on; one more of `W` while chunks are added up |
//!
//! The work is the same plus `N/c` additions of a gradient of `W`.
//!
//! The gradients of `W` and `b` are sums over chunks of sums over tokens, and the loss is a sum over chunks, so they
//! differ from the unchunked loss by rounding. A recorded step runs the same operations as a plain loop with this loss,
//! and matches it bit for bit.

use std::ops::Add;

use burn::tensor::{IndexingUpdateOp, Int, Tensor, module::linear};

use crate::{Dtype, known_gradient::with_gradient, record::without_graph};

/// Cross entropy with the projection onto the vocabulary inside, in chunks of tokens: the logits never exist whole.
///
/// ```
/// # use burn::{nn::LinearConfig, prelude::*, tensor::Distribution};
/// use rekindle::ChunkedCrossEntropy;
///
/// # let device = Device::flex().autodiff();
/// # let head = LinearConfig::new(8, 1000).init(&device);
/// # let hidden = Tensor::<2>::random([64, 8], Distribution::Default, &device);
/// # let targets = Tensor::<1, Int>::zeros([64], &device);
/// let (weight, bias) = (head.weight.val(), head.bias.as_ref().map(|bias| bias.val()));
/// let loss = ChunkedCrossEntropy::new().forward(hidden, weight, bias, targets);
/// let gradients = loss.backward();
/// # assert_eq!(head.weight.val().grad(&gradients).map(|gradient| gradient.dims()), Some([8, 1000]));
/// ```
///
/// A projection that shares its weight with an embedding takes `embedding.weight.val().transpose()`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkedCrossEntropy {
    chunks: Option<usize>,
}

impl ChunkedCrossEntropy {
    /// Uses one chunk for every `d` tokens, rounded up, so that one chunk's logits are no larger than the weight. They
    /// then take as much memory as the weight's gradient, which is needed anyway, and accumulating that gradient takes
    /// little time compared with computing it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this many chunks: at least 1, at most one for each token.
    #[must_use]
    pub fn with_chunks(self, chunks: usize) -> Self {
        let chunks = Some(chunks.max(1));
        Self { chunks }
    }

    /// The mean loss of the tokens, shape `[1]`, in `f32`.
    ///
    /// `hidden` is `[N, d]`, `weight` `[d, V]`, `bias` `[V]`; `targets` `[N]` are classes below `V`.
    ///
    /// # Panics
    ///
    /// Panics like burn's operations: if shapes do not match, or tensors are on different devices.
    pub fn forward(
        self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        self.run(hidden, weight, bias, targets, false).0
    }

    /// Like [`forward`](Self::forward); also returns the number of tokens whose largest logit is at their target, shape
    /// `[1]`.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_and_correct(
        self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
    ) -> (Tensor<1>, Tensor<1, Int>) {
        let device = targets.device();
        let (loss, correct) = self.run(hidden, weight, bias, targets, true);
        (loss, correct.unwrap_or_else(|| Tensor::zeros([1], &device)))
    }

    fn run(
        self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
        count: bool,
    ) -> (Tensor<1>, Option<Tensor<1, Int>>) {
        let [tokens, width] = hidden.dims();
        let targets = targets.inner();
        let rows = without_graph(hidden.clone());
        let by_hidden = hidden.is_tracked();
        let by_bias = bias.as_ref().is_some_and(Tensor::is_tracked);
        let chunks = Chunks {
            weight: without_graph(weight.clone()),
            bias: bias.clone().map(without_graph),
            wanted: [by_hidden, weight.is_tracked(), by_bias],
            count,
        };
        let mut sums = Sums::default();
        let length = self.chunks.map_or(width, |chunks| tokens.div_ceil(chunks));
        let length = length.max(1);
        for start in (0..tokens).step_by(length) {
            let part = start..tokens.min(start + length);
            chunks.add(
                rows.clone().slice(part.clone()),
                targets.clone().slice(part),
                &mut sums,
            );
        }
        let mut loss = sums
            .loss
            .unwrap_or_else(|| Tensor::zeros([1], &rows.device()));
        if by_hidden && !sums.hidden.is_empty() {
            loss = with_gradient(loss, hidden, Tensor::cat(sums.hidden, 0));
        }
        if let Some(gradient) = sums.weight {
            loss = with_gradient(loss, weight, gradient);
        }
        if let (Some(bias), Some(gradient)) = (bias, sums.bias) {
            loss = with_gradient(loss, bias, gradient);
        }
        (loss / tokens as f64, sums.correct)
    }
}

/// Values that all chunks share; no tensor has a graph.
struct Chunks {
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    /// Whether gradients of hidden values, weight and bias are wanted.
    wanted: [bool; 3],
    /// Whether correct predictions are counted.
    count: bool,
}

/// Sums over the chunks so far.
#[derive(Default)]
struct Sums {
    loss: Option<Tensor<1>>,
    /// Gradients of each chunk's hidden values.
    hidden: Vec<Tensor<2>>,
    weight: Option<Tensor<2>>,
    bias: Option<Tensor<1>>,
    correct: Option<Tensor<1, Int>>,
}

impl Chunks {
    /// Computes one chunk, in place where the backend can.
    fn add(&self, rows: Tensor<2>, targets: Tensor<1, Int>, sums: &mut Sums) {
        let dtype = rows.dtype();
        let targets = targets.unsqueeze_dim::<2>(1);
        let logits = linear(rows.clone(), self.weight.clone(), self.bias.clone());
        let logits = logits.cast(Dtype::F32.float());
        if self.count {
            let guesses = logits.clone().argmax(1);
            let right = guesses.equal(targets.clone()).int().sum();
            accumulate(&mut sums.correct, right);
        }
        let wanted = logits.clone().gather(1, targets.clone());
        let largest = logits.clone().max_dim(1);
        let exponentials = (logits - largest.clone()).exp();
        let total = exponentials.clone().sum_dim(1);
        let losses = total.clone().log() + largest - wanted;
        accumulate(&mut sums.loss, losses.sum());
        let [by_hidden, by_weight, by_bias] = self.wanted;
        if !(by_hidden || by_weight || by_bias) {
            return;
        }
        let minus_one = total.full_like(-1.0);
        let gradient = exponentials / total;
        let gradient = gradient.scatter(1, targets, minus_one, IndexingUpdateOp::Add);
        let gradient = gradient.cast(dtype);
        if by_bias {
            let part = gradient.clone().sum_dim(0).squeeze_dim::<1>(0);
            accumulate(&mut sums.bias, part);
        }
        if by_hidden {
            let weight = self.weight.clone().transpose();
            sums.hidden.push(gradient.clone().matmul(weight));
        }
        if by_weight {
            accumulate(&mut sums.weight, rows.transpose().matmul(gradient));
        }
    }
}

/// Adds a part to a sum that may still be empty.
fn accumulate<T: Add<Output = T>>(sum: &mut Option<T>, part: T) {
    *sum = Some(match sum.take() {
        Some(sum) => sum + part,
        None => part,
    });
}
