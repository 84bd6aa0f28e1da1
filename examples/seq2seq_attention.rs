//! A sequence-to-sequence model with attention (Bahdanau et al., 2014): a GRU encoder, a bridge to the decoder's first
//! state, and a decoder that looks at all of the source in each step. The time loops and the weights that they share are
//! recorded as they stand. Three trainings, each within 65% of the memory of the one before: plain, with a plan, and with the
//! loss in chunks of tokens besides.
//!
//! `cargo run --release --example seq2seq_attention`, and with `-- --full` at the size of the paper's: hidden state
//! and attention 1,000, embedding 500, vocabulary 30,000, batch 80, 50 tokens. That takes 5 GB and minutes; `-- --full --estimate` plans it
//! from shapes alone, without any of that memory.

use std::{error::Error, time::Instant};

use burn::{
    nn::{
        Embedding, EmbeddingConfig, Linear, LinearConfig,
        gru::{Gru, GruConfig},
        loss::CrossEntropyLossConfig,
    },
    optim::AdamConfig,
    prelude::*,
    tensor::{Distribution, activation::softmax},
};
use rekindle::{
    ChunkedCrossEntropy,
    meter::PhaseReading,
    record::{Assumed, Estimate},
};
use rekindle_plan::{Bytes, Planner};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

/// What each training may take of the one before.
const SHARE: f64 = 0.65;
const STEPS: usize = 3;

#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    embedding: usize,
    attention: usize,
    vocabulary: usize,
    batch: usize,
    length: usize,
}

const FULL: Sizes = Sizes {
    hidden: 1000,
    embedding: 500,
    attention: 1000,
    vocabulary: 30_000,
    batch: 80,
    length: 50,
};

const SMALL: Sizes = Sizes {
    hidden: 96,
    embedding: 48,
    attention: 256,
    vocabulary: 3000,
    batch: 64,
    length: 16,
};

#[derive(Module, Debug)]
struct Translator {
    source: Embedding,
    encoder: Gru,
    bridge: Linear,
    keys: Linear,
    query: Linear,
    score: Linear,
    target: Embedding,
    decoder: Gru,
    readout: Linear,
    projection: Linear,
}

/// Source tokens, and the target's from the first on and from the second on: `[batch, length]` each.
type Sentences = (Tensor<2, Int>, (Tensor<2, Int>, Tensor<2, Int>));

impl Translator {
    fn new(sizes: Sizes, device: &Device) -> Self {
        let Sizes {
            hidden,
            embedding,
            attention,
            vocabulary,
            ..
        } = sizes;
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            source: EmbeddingConfig::new(vocabulary, embedding).init(device),
            encoder: GruConfig::new(embedding, hidden, true).init(device),
            bridge: linear(hidden, hidden),
            keys: linear(hidden, attention),
            query: linear(hidden, attention),
            score: linear(attention, 1),
            target: EmbeddingConfig::new(vocabulary, embedding).init(device),
            decoder: GruConfig::new(embedding + hidden, hidden, true).init(device),
            readout: linear(2 * hidden + embedding, embedding),
            projection: linear(embedding, vocabulary),
        }
    }

    /// What the projection onto the vocabulary is given: `[batch x length, embedding]`.
    fn forward(&self, source: Tensor<2, Int>, target: Tensor<2, Int>) -> Tensor<2> {
        let mut state = None;
        let mut seen = Vec::new();
        for word in self.source.forward(source).iter_dim(1) {
            let output = self.encoder.forward(word, state);
            state = Some(output.clone().squeeze_dim(1));
            seen.push(output);
        }
        let memory = Tensor::cat(seen, 1);
        let keys = self.keys.forward(memory.clone());
        let mut state = state.map(|last: Tensor<2>| self.bridge.forward(last).tanh());
        let mut outputs = Vec::new();
        for word in self.target.forward(target).iter_dim(1) {
            let context = self.context(&keys, &memory, state.clone());
            let output = self
                .decoder
                .forward(Tensor::cat(vec![word.clone(), context.clone()], 2), state);
            state = Some(output.clone().squeeze_dim(1));
            outputs.push(Tensor::cat(vec![output, context, word], 2));
        }
        self.readout
            .forward(Tensor::cat(outputs, 1))
            .tanh()
            .flatten(0, 1)
    }

    /// The mean of what was seen, weighted by how well it fits the decoder's state: `[batch, 1, hidden]`.
    fn context(&self, keys: &Tensor<3>, memory: &Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> {
        let keys = match state {
            Some(state) => keys.clone() + self.query.forward(state).unsqueeze_dim(1),
            None => keys.clone(),
        };
        let weights = softmax(self.score.forward(keys.tanh()), 1);
        weights.swap_dims(1, 2).matmul(memory.clone())
    }
}

/// The logits of all tokens at once.
fn whole(model: &Translator, (source, (target, next)): Sentences) -> Tensor<1> {
    let logits = model.projection.forward(model.forward(source, target));
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, next.flatten(0, 1))
}

/// The logits of some tokens after those of others.
fn chunked(model: &Translator, (source, (target, next)): Sentences) -> Tensor<1> {
    let hidden = model.forward(source, target);
    let Linear { weight, bias } = &model.projection;
    let bias = bias.as_ref().map(|bias| bias.val());
    ChunkedCrossEntropy::new().forward(hidden, weight.val(), bias, next.flatten(0, 1))
}

/// Sentences to be told backwards. The first token of a target says that it begins.
fn sentences(sizes: Sizes, device: &Device) -> Sentences {
    let range = Distribution::Uniform(1.0, sizes.vocabulary as f64);
    let source = Tensor::<2, Int>::random([sizes.batch, sizes.length], range, device);
    let next = source.clone().flip([1]);
    let begin = Tensor::zeros([sizes.batch, 1], device);
    let target = Tensor::cat(vec![begin, next.clone().narrow(1, 0, sizes.length - 1)], 1);
    (source, (target, next))
}

type Loss = fn(&Translator, Sentences) -> Tensor<1>;

/// Trains for a few steps, within a budget where there is one: the highest peak.
fn train(
    name: &str,
    sizes: Sizes,
    loss: Loss,
    budget: Option<Bytes>,
) -> Result<Bytes, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Translator::new(sizes, &device);
    let mut optimizer = AdamConfig::new().init();
    let first = sentences(sizes, &device);
    let recorded = rekindle::record(&model, &first, loss)?.with_optimizer(&optimizer);
    let step = match budget {
        Some(budget) => recorded.within(budget)?,
        None => recorded.plain()?,
    };
    drop(first);
    let plan = step.plan();
    println!("\n{name}: {plan}");
    println!("step  phase            MB at its end  MB at its peak  seconds");
    let (mut peak, mut losses) = (Bytes::ZERO, Vec::new());
    for number in 1..=STEPS {
        let output = step.run(&model, sentences(sizes, &device))?;
        for PhaseReading {
            phase,
            seconds_s,
            memory,
        } in &output.phases
        {
            row(
                number,
                &format!("{phase:?}"),
                memory.in_use_bytes,
                memory.peak_in_use_bytes,
                *seconds_s,
            );
            peak = peak.max(memory.peak_in_use_bytes);
        }
        losses.push(output.loss.into_scalar::<f32>());
        rekindle_alloc::reset_peak();
        let started = Instant::now();
        model = optimizer.step(1e-3, model, output.gradients);
        let update = Bytes(rekindle_alloc::peak() as u64);
        row(
            number,
            "update",
            Bytes(rekindle_alloc::in_use() as u64),
            update,
            started.elapsed().as_secs_f64(),
        );
        peak = peak.max(update);
    }
    println!(
        "loss {losses:.3?}; predicted peak {}, measured {peak}",
        plan.predicted_peak
    );
    assert!(
        budget.is_none_or(|budget| peak <= budget) && losses.iter().all(|loss| loss.is_finite())
    );
    Ok(peak)
}

fn row(step: usize, phase: &str, end: Bytes, peak: Bytes, seconds: f64) {
    let [end, peak] = [end, peak].map(|bytes| bytes.0 as f64 / 1e6);
    println!("{step:4}  {phase:14} {end:15.1} {peak:15.1} {seconds:8.3}");
}

/// By shapes alone: the plain peak, Adam's state included, and the smallest budget that a plan was found for.
fn estimate(name: &str, sizes: Sizes, loss: Loss) -> Result<(), Box<dyn Error>> {
    let make = |device: &Device| (Translator::new(sizes, device), sentences(sizes, device));
    let estimate: Estimate = rekindle::estimate(Assumed::default(), make, loss)?;
    let state = Bytes(2 * estimate.parameter_bytes.0);
    println!(
        "{name}: {} operations, plain {}, smallest budget {}",
        estimate.operations,
        estimate.plain_peak + state,
        estimate.profile.smallest_budget(Planner::Auto)? + state,
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let given = |flag: &str| asked.iter().any(|argument| argument == flag);
    if let Some(unknown) = asked
        .iter()
        .find(|one| !["--full", "--estimate"].contains(&one.as_str()))
    {
        return Err(format!("unknown argument {unknown}: expected --full or --estimate").into());
    }
    let sizes = if given("--full") { FULL } else { SMALL };
    if given("--estimate") {
        estimate("the whole loss", sizes, whole)?;
        return estimate("the loss in chunks", sizes, chunked);
    }
    let plain = train("plain", sizes, whole, None)?;
    let share = |of: Bytes| Some(Bytes((of.0 as f64 * SHARE) as u64));
    let planned = train("with a plan", sizes, whole, share(plain))?;
    let in_chunks = train(
        "with a plan and the loss in chunks",
        sizes,
        chunked,
        share(planned),
    )?;
    println!(
        "\npeak  plain {plain}, with a plan {planned}, and the loss in chunks {in_chunks}; each budget is 65% of the one before"
    );
    Ok(())
}
