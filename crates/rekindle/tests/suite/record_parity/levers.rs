//! Levers that make a step fit, in pairs: parameters of a small transformer after some Adam steps are
//! those of burn's own loop on the same arithmetic bit for bit, and the peak stays within the budget.
//!
//! An update in the backward pass frees gradients that parts of a batch add up: the one pair that cannot be had.
//! Trainings refuse it and say why (`update_in_backward.rs` of rekindle-train).

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer},
    tensor::{Device, Distribution, FloatDType, Int, Tensor},
};
use rekindle::{ChunkedCrossEntropy, Dtype, MasterWeights, record::driver::Wanted};
use rekindle_plan::{Bytes, Planner};

use super::{LEEWAY, LINK, RATE, bits, by_way_of_the_host, loss_bits, models::Gpt};

const STEPS: u64 = 2;
const BATCH: usize = 96;
/// Of a budget plans leave 1%.
const RESERVE: f64 = 1.02;

/// What makes a step fit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lever {
    Recompute,
    Offload,
    UpdateInBackward,
    LossInChunks,
    HalfPrecision,
    Parts,
}

use Lever::{HalfPrecision, LossInChunks, Offload, Parts, Recompute, UpdateInBackward};

const LEVERS: [Lever; 6] = [
    Recompute,
    Offload,
    UpdateInBackward,
    LossInChunks,
    HalfPrecision,
    Parts,
];

type Tokens = (Tensor<2, Int>, Tensor<2, Int>);

fn loss(model: &Gpt, (tokens, targets): Tokens, levers: &[Lever]) -> Tensor<1> {
    let targets = targets.flatten(0, 1);
    let loss = match levers.contains(&LossInChunks) {
        true => {
            let hidden = model.hidden(tokens).flatten::<2>(0, 1);
            let chunked = ChunkedCrossEntropy::new().with_chunks(3);
            chunked.forward(hidden, model.head.weight.val(), None, targets)
        }
        false => {
            let output = model.forward(tokens).flatten::<2>(0, 1);
            let loss = CrossEntropyLossConfig::new().init(&output.device());
            loss.forward(output.cast(FloatDType::F32), targets)
        }
    };
    match levers.contains(&Parts) {
        true => loss / 2.0,
        false => loss,
    }
}

fn optimizer(levers: &[Lever]) -> ModuleOptimizer {
    match levers.contains(&HalfPrecision) {
        true => MasterWeights::new(AdamConfig::new().build()).into(),
        false => AdamConfig::new().init(),
    }
}

/// Trains with burn alone and with a recorded step that uses these levers.
fn check(levers: &[Lever]) {
    let has = |lever| levers.contains(&lever);
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = match has(HalfPrecision) {
        true => Dtype::Bf16.cast(Gpt::new(&device)),
        false => Gpt::new(&device),
    };
    drop(model.valid());
    let parts = if has(Parts) { 2 } else { 1 };
    let range = Distribution::Uniform(0.0, 40.0);
    let tokens = || Tensor::<2, Int>::random([BATCH / parts, 12], range, &device);
    let batches: Vec<Vec<Tokens>> = (0..STEPS)
        .map(|_| (0..parts).map(|_| (tokens(), tokens())).collect())
        .collect();

    let mut plain = model.valid().train();
    let mut own = optimizer(levers);
    let mut losses = Vec::new();
    for (seed, batch) in (0..).zip(&batches) {
        device.seed(seed);
        let mut sum = GradientsAccumulator::new();
        for part in batch {
            let loss = loss(&plain, part.clone(), levers);
            losses.push(loss_bits(loss.clone()));
            let gradients = GradientsParams::from_grads(loss.backward(), &plain);
            sum.accumulate(&plain, gradients);
        }
        plain = own.step(RATE, plain, sum.grads());
    }
    let expected = bits(&plain);
    assert_ne!(expected, bits(&model), "{levers:?}: nothing was trained");

    let mut own = optimizer(levers);
    let first = model.valid().train();
    let recorded = rekindle::record(&first, &batches[0][0], |model: &Gpt, part| {
        loss(model, part, levers)
    });
    let recorded = recorded.expect("recorded");
    let recorded = match has(UpdateInBackward) {
        true => recorded.with_update_in_backward(&own),
        false => recorded.with_optimizer(&own),
    };
    let recorded = recorded
        .with_parts(parts)
        .with_link(has(Offload).then_some(LINK));
    let mut step = recorded.plain().expect("plain");
    let mut wanted: Wanted = match has(Recompute) {
        true => Planner::Segments(Some(3)).into(),
        false => Planner::None.into(),
    };
    step.plan_again(None, wanted.clone()).expect("a plan");
    if has(Offload) {
        let (graph, program) = step.graph();
        wanted = by_way_of_the_host(&graph, &program);
        step.plan_again(None, wanted.clone()).expect("transfers");
    }
    let budget = Bytes((step.plan().predicted_peak.0 as f64 * RESERVE) as u64) + LEEWAY;
    // The process's meter counts copies on the host too, which no budget bounds: then the peak is compared afterwards.
    let bound = (!has(Offload)).then_some(budget);
    step.plan_again(bound, wanted)
        .expect("a plan within its own peak");
    let plan = step.plan();
    let offload = plan
        .offload
        .map(|offload| (offload.tensors, offload.host_peak_bytes));
    let (moved, on_host) = offload.unwrap_or_default();
    assert_eq!(plan.repeated > 0, has(Recompute), "{levers:?}: {plan}");
    assert_eq!(moved > 0, has(Offload), "{levers:?}: {plan}");

    let mut trained = model.valid().train();
    let mut peak = Bytes::ZERO;
    let mut expected_losses = losses.into_iter();
    for (seed, batch) in (0..).zip(&batches) {
        device.seed(seed);
        let mut sum = GradientsAccumulator::new();
        for part in batch {
            let output = match has(UpdateInBackward) {
                true => step.run_updating(&mut trained, part.clone(), RATE, &mut own),
                false => step.run(&trained, part.clone()),
            };
            let output = output.expect("runs");
            let loss = Some(loss_bits(output.loss));
            assert_eq!(loss, expected_losses.next(), "{levers:?}, step {seed}");
            peak = peak.max(output.memory.peak_in_use_bytes);
            sum.accumulate(&trained, output.gradients);
        }
        if !has(UpdateInBackward) {
            trained = own.step(RATE, trained, sum.grads());
        }
    }
    assert!(bits(&trained) == expected, "{levers:?}: other parameters");
    eprintln!(
        "{levers:?}: {peak} in {budget}, {on_host} on the host; {} again, {moved} moved",
        plan.repeated
    );
    assert!(peak <= budget + on_host, "{levers:?}: {peak} in {budget}");
}

#[test]
fn pairs_of_levers_train_as_the_plain_loop() {
    own_process!();
    for (place, &one) in LEVERS.iter().enumerate() {
        for &other in &LEVERS[place + 1..] {
            if [one, other] != [UpdateInBackward, Parts] {
                check(&[one, other]);
            }
        }
    }
}
