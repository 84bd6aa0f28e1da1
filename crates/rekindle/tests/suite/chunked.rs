//! Cross entropy in chunks of tokens: burn's own loss and gradients within rounding, in a loop and recorded, and the
//! memory of one chunk in place of the whole.

use burn::{
    module::Module,
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::GradientsParams,
    tensor::{DType, Device, Int, Tensor, activation::gelu},
};
use rekindle::{
    ChunkedCrossEntropy, Dtype,
    meter::{HostMeter, Meter},
    record::{RecordError, Step},
};
use rekindle_plan::{Bytes, Planner};

use crate::compare::{Trace, assert_same, floats, gradients_of};

/// Sums of some dozens of terms below 1 in another order: a unit in the last place for each.
const ROUNDING: f32 = 4e-6;

/// A classifier of tokens whose projection may share the embedding's weight.
#[derive(Module, Debug)]
struct Classifier {
    words: Embedding,
    body: Linear,
    head: Option<Linear>,
}

impl Classifier {
    fn new(vocabulary: usize, width: usize, head: Option<bool>, device: &Device) -> Self {
        let linear = |out, bias| LinearConfig::new(width, out).with_bias(bias).init(device);
        let new = Self {
            words: EmbeddingConfig::new(vocabulary, width).init(device),
            body: linear(width, true),
            head: head.map(|bias| linear(vocabulary, bias)),
        };
        // Drawn now, and not when it is first used.
        drop(new.valid());
        new
    }

    fn hidden(&self, words: Tensor<1, Int>) -> Tensor<2> {
        let words = self
            .words
            .forward(words.unsqueeze::<2>())
            .squeeze_dim::<2>(0);
        gelu(self.body.forward(words))
    }

    fn projection(&self) -> (Tensor<2>, Option<Tensor<1>>) {
        match &self.head {
            Some(head) => (head.weight.val(), head.bias.as_ref().map(|bias| bias.val())),
            None => (self.words.weight.val().transpose(), None),
        }
    }

    /// By burn alone.
    fn whole(&self, (words, targets): Batch) -> Tensor<1> {
        let (weight, bias) = self.projection();
        let logits = burn::tensor::module::linear(self.hidden(words), weight, bias);
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        loss.forward(logits.cast(Dtype::F32.float()), targets)
    }

    fn chunked(&self, loss: ChunkedCrossEntropy, (words, targets): Batch) -> Tensor<1> {
        let (weight, bias) = self.projection();
        loss.forward(self.hidden(words), weight, bias, targets)
    }
}

/// Words and their targets.
type Batch = (Tensor<1, Int>, Tensor<1, Int>);

fn batch(tokens: usize, vocabulary: usize, device: &Device) -> Batch {
    let ids = |step: usize| {
        let ids: Vec<i32> = (0..tokens)
            .map(|n| (n * step % vocabulary) as i32)
            .collect();
        Tensor::<1, Int>::from_data(ids.as_slice(), device)
    };
    (ids(7), ids(11))
}

/// Loss and gradients.
fn trace(model: &Classifier, loss: Tensor<1>) -> Trace {
    let mut trace = vec![("loss".to_owned(), floats(loss.clone().inner()))];
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    trace.extend(gradients_of(0, model, &gradients));
    trace
}

fn every_way(tokens: usize) -> Vec<ChunkedCrossEntropy> {
    let counts = [1, 2, 3, tokens, 3 * tokens];
    let counts = counts.map(|chunks| ChunkedCrossEntropy::new().with_chunks(chunks));
    [ChunkedCrossEntropy::new()]
        .into_iter()
        .chain(counts)
        .collect()
}

#[test]
fn loss_and_gradients_are_those_of_burn() {
    let device = Device::flex().autodiff();
    for head in [Some(true), Some(false), None] {
        let model = Classifier::new(17, 5, head, &device);
        let batch = batch(13, 17, &device);
        let whole = trace(&model, model.whole(batch.clone()));
        for loss in every_way(13) {
            let chunked = trace(&model, model.chunked(loss, batch.clone()));
            assert_same(&format!("{head:?}, {loss:?}"), &whole, &chunked, ROUNDING);
        }
    }
}

/// In half precision logits are rounded once, and gradients where each chunk's is added.
#[test]
fn half_types_compute_the_loss_in_f32() {
    let device = Device::flex().autodiff();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let model = dtype.cast(Classifier::new(17, 5, Some(true), &device));
        let batch = batch(13, 17, &device);
        let whole = trace(&model, model.whole(batch.clone()));
        let chunked = ChunkedCrossEntropy::new().with_chunks(3);
        let chunked = model.chunked(chunked, batch);
        assert_eq!(chunked.dtype(), DType::F32);
        let rounding = 4.0 * dtype.float().finfo().epsilon as f32;
        assert_same(
            &format!("{dtype}"),
            &whole,
            &trace(&model, chunked),
            rounding,
        );
    }
}

#[test]
fn a_loss_that_goes_on_gives_gradients_its_factor() {
    let device = Device::flex().autodiff();
    let model = Classifier::new(17, 5, Some(true), &device);
    let batch = batch(13, 17, &device);
    let scaled = |loss: Tensor<1>| {
        let weight = model.words.weight.val();
        loss.clone() * loss + weight.square().sum() * 0.1
    };
    let whole = trace(&model, scaled(model.whole(batch.clone())));
    let chunked = model.chunked(ChunkedCrossEntropy::new(), batch);
    assert_same("squared", &whole, &trace(&model, scaled(chunked)), ROUNDING);
}

#[test]
fn what_is_frozen_gets_no_gradient() {
    let device = Device::flex().autodiff();
    let mut model = Classifier::new(17, 5, Some(true), &device);
    model.head = model.head.map(Module::no_grad);
    let batch = batch(13, 17, &device);
    let whole = trace(&model, model.whole(batch.clone()));
    assert!(whole.iter().any(|(_, values)| values.is_empty()));
    let chunked = trace(&model, model.chunked(ChunkedCrossEntropy::new(), batch));
    assert_same("a frozen head", &whole, &chunked, ROUNDING);
}

/// With no weights every class is as likely: the loss is `ln V`, and the bias's gradient `1/V` less the targets' share.
#[test]
fn equal_logits_have_the_loss_of_a_guess() {
    let device = Device::flex().autodiff();
    let hidden = Tensor::<2>::ones([6, 3], &device);
    let weight = Tensor::<2>::zeros([3, 4], &device);
    let bias = Tensor::<1>::zeros([4], &device).require_grad();
    let targets = Tensor::<1, Int>::from_data([0, 0, 0, 1, 1, 2], &device);
    let loss = ChunkedCrossEntropy::new().with_chunks(4);
    let (loss, correct) = loss.forward_and_correct(hidden, weight, Some(bias.clone()), targets);
    let value = loss.clone().into_scalar::<f32>();
    assert!((value - 4f32.ln()).abs() < ROUNDING, "{value}");
    // The first of equal logits is the guess.
    assert_eq!(correct.into_scalar::<i32>(), 3);
    let gradient = bias.grad(&loss.backward()).expect("tracked");
    let gradient = floats(gradient);
    for (value, share) in gradient.iter().zip([3.0, 2.0, 1.0, 0.0]) {
        let expected = 0.25 - share / 6.0;
        assert!((value - expected).abs() < ROUNDING, "{gradient:?}");
    }
}

#[test]
fn without_autodiff_the_loss_is_the_same() {
    let device = Device::flex().autodiff();
    let model = Classifier::new(17, 5, Some(true), &device);
    let (words, targets) = batch(13, 17, &device);
    let tracked = model.chunked(ChunkedCrossEntropy::new(), (words.clone(), targets.clone()));
    let evaluated = (words.inner(), targets.inner());
    let evaluated = model.valid().chunked(ChunkedCrossEntropy::new(), evaluated);
    assert_eq!(floats(tracked.inner()), floats(evaluated));
}

const TOKENS: usize = 512;
const WIDTH: usize = 32;
const VOCABULARY: usize = 2_048;
/// Of the logits, and of the weight's gradient.
const LOGITS: u64 = (TOKENS * VOCABULARY * 4) as u64;
const WEIGHT: u64 = (WIDTH * VOCABULARY * 4) as u64;

#[test]
fn a_loop_holds_one_chunk_in_place_of_the_logits() {
    own_process!();
    let device = Device::flex().autodiff();
    let meter = HostMeter::new().expect("installed");
    let model = Classifier::new(VOCABULARY, WIDTH, Some(true), &device);
    let batch = batch(TOKENS, VOCABULARY, &device);
    let taken = |run: &dyn Fn() -> Tensor<1>| {
        // The first run leaves the scratch of matrix products.
        drop(trace(&model, run()));
        let before = meter.read().in_use_bytes;
        meter.start_interval();
        drop(run().backward());
        (meter.read().peak_in_use_bytes - before).0
    };
    let whole = taken(&|| model.whole(batch.clone()));
    let chunked = taken(&|| model.chunked(ChunkedCrossEntropy::new(), batch.clone()));
    println!("logits {LOGITS}, weight {WEIGHT}: whole {whole}, in chunks {chunked}");
    assert!(whole >= 2 * LOGITS, "{whole}");
    // The gradients of weight and embedding, one more of the weight, one chunk's logits and what the bias takes.
    let hidden = (TOKENS * WIDTH * 4) as u64;
    assert!(chunked <= 5 * WEIGHT + 8 * hidden, "{chunked}");
}

type Planned<F> = Step<Classifier, Batch, Tensor<1>, F>;

#[test]
fn a_recorded_step_is_the_loop_within_its_budget() {
    own_process!();
    let device = Device::flex().autodiff();
    for head in [Some(true), None] {
        let model = Classifier::new(VOCABULARY, WIDTH, head, &device);
        let batch = batch(TOKENS, VOCABULARY, &device);
        let loss =
            |model: &Classifier, batch: Batch| model.chunked(ChunkedCrossEntropy::new(), batch);
        let expected = trace(&model, loss(&model, batch.clone()));
        let whole = rekindle::record(&model, &batch, Classifier::whole).expect("records");
        let whole = whole.plain().expect("plans").plan().plain_peak;

        let recorded = rekindle::record(&model, &batch, loss).expect("records");
        let mut step = recorded.plain().expect("plans");
        let plain = step.plan().plain_peak;
        println!("{head:?}: whole {whole}, in chunks {plain}");
        assert!(plain.0 + LOGITS <= whole.0, "{plain} instead of {whole}");
        check(&step, &model, &batch, &expected, None);
        let Err(RecordError::Infeasible { smallest, .. }) =
            step.set_budget(Bytes(1), Planner::Auto)
        else {
            panic!("one byte is enough");
        };
        step.set_budget(smallest, Planner::Auto)
            .expect("the smallest");
        check(&step, &model, &batch, &expected, Some(smallest));
    }
}

fn check<F: Fn(&Classifier, Batch) -> Tensor<1>>(
    step: &Planned<F>,
    model: &Classifier,
    batch: &Batch,
    expected: &Trace,
    budget: Option<Bytes>,
) {
    let output = step.run(model, batch.clone()).expect("runs");
    let (predicted, measured) = (output.predicted_peak, output.memory.peak_in_use_bytes);
    println!("predicted {predicted}, measured {measured}, budget {budget:?}");
    assert!(budget.is_none_or(|budget| measured <= budget));
    let error = predicted.0 as f64 / measured.0 as f64 - 1.0;
    assert!(
        error.abs() <= 0.03,
        "{predicted} predicted, {measured} measured"
    );
    let mut trace = vec![("loss".to_owned(), floats(output.loss))];
    trace.extend(gradients_of(0, model, &output.gradients));
    assert_same("recorded", expected, &trace, 0.0);
}
