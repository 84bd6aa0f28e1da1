//! Loss, gradients, statistics, updated parameters and later random numbers equal the plain run's.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use burn::{
    module::Module,
    nn::LinearConfig,
    optim::{AdamConfig, GradientsParams},
    tensor::{Distribution, Tensor},
};
use rekindle::{StepSeed, Tape};

use crate::compare::{Trace, assert_same, floats, gradients_of, private_copy, state_of};

use super::{
    device,
    models::{self, Net, ROWS, WIDTH},
    run::Plain,
};

type Step = (Tensor<1>, GradientsParams);

/// Three steps. After the second the parameters stay, so that the third meets leaves that a backward has reached,
/// unless the input wants a gradient: see the limits in the tape's docs.
fn train(net: &Net, input: &Tensor<2>, step: impl Fn(&Net, Tensor<2>, StepSeed) -> Step) -> Trace {
    let mut net = private_copy(net);
    let mut optimizer = AdamConfig::new().init();
    let mut trace = Trace::new();
    device().seed(3);
    for number in 0..3 {
        // A leaf of its own in every step, held until the step is over.
        let wants_gradient = input.is_require_grad();
        let input = input
            .clone()
            .inner()
            .autodiff()
            .set_require_grad(wants_gradient);
        let (loss, gradients) = step(&net, input.clone(), StepSeed::new(5, number));
        trace.push((format!("loss of step {number}"), floats(loss.inner())));
        trace.extend(gradients_of(number, &net, &gradients));
        drop(input);
        if number != 1 || wants_gradient {
            net = optimizer.step(1e-2, net, gradients);
        }
    }
    trace.extend(state_of(&net));
    trace
}

macro_rules! same_as_plain {
    ($net:expr, $input:expr, $($forward:path),+ $(,)?) => {$(
        let plain = train($net, $input, |net, input, seed| {
            let mut run = Plain { seed, checkpoints: 0 };
            let loss = $forward(net, input, &mut run);
            let gradients = GradientsParams::from_grads(loss.backward(), net);
            (loss, gradients)
        });
        let taped = train($net, $input, |net, input, seed| {
            let mut tape = Tape::new(seed);
            let loss = $forward(net, input, &mut tape);
            let gradients = tape.backward(loss.clone(), net).expect(stringify!($forward));
            (loss, gradients)
        });
        assert_same(stringify!($forward), &plain, &taped, 0.0);
    )+};
}

macro_rules! every_model {
    ($net:expr, $input:expr) => {
        same_as_plain!(
            $net,
            $input,
            models::ordinary_between,
            models::in_a_row,
            models::skip,
            models::skip_from_leaves,
            models::hidden_skip,
            models::nested_skips,
            models::two_of_one_value,
            models::one_layer_twice,
            models::nested_data,
            models::dead_end,
        )
    };
}

fn net_and_input() -> (Net, Tensor<2>) {
    let device = device();
    device.seed(1);
    let net = private_copy(&models::net());
    let input = Tensor::random([ROWS, WIDTH], Distribution::Default, &device);
    (net, input)
}

#[test]
fn every_model_equals_the_plain_run_bit_for_bit() {
    own_process!();
    let (net, input) = net_and_input();
    every_model!(&net, &input);
}

#[test]
fn frozen_parameters_stay_without_gradients() {
    own_process!();
    let (net, input) = net_and_input();
    let mut inside = net.clone();
    inside.first.linear = inside.first.linear.no_grad();
    every_model!(&inside, &input);
    let mut before = net.clone();
    before.before = before.before.no_grad();
    every_model!(&before, &input);
    let mut whole = net;
    whole.first = whole.first.no_grad();
    every_model!(&whole, &input);
}

#[test]
fn an_input_may_want_a_gradient() {
    own_process!();
    let (net, input) = net_and_input();
    let input = input.require_grad();
    every_model!(&net, &input);
}

/// Draws after the step must not depend on how it was run; here, on how many checkpoints drew.
#[test]
fn the_generator_is_left_in_a_known_state() {
    own_process!();
    let (net, input) = net_and_input();
    let seed = StepSeed::new(1, 2);
    let mut tape = Tape::new(seed);
    let loss = models::ordinary_between(&net, input, &mut tape);
    tape.backward(loss, &net).expect("no misuse");
    let draw = || Tensor::<1>::random([4], Distribution::Default, &device());
    let after = floats(draw());
    device().seed(seed.after());
    assert_eq!(after, floats(draw()));
}

/// Every checkpoint runs once forward, and once more only if a gradient comes to it.
#[test]
fn forwards_are_counted() {
    own_process!();
    let device = device();
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device);
    let (used, unused) = (linear(), linear());
    let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let input = Tensor::<2>::ones([ROWS, WIDTH], &device);
    let mut tape = Tape::new(StepSeed::new(0, 0));
    let mut outputs = Vec::new();
    for (module, count) in [&used, &unused].into_iter().zip(&counts) {
        let count = Arc::clone(count);
        outputs.push(
            tape.checkpoint_with(module, input.clone(), move |module, input| {
                count.fetch_add(1, Ordering::Relaxed);
                module.forward(input)
            }),
        );
    }
    let ran = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(ran(), [1, 1]);
    let model = (used.clone(), unused);
    let gradients = tape
        .backward(outputs.swap_remove(0).mean(), &model)
        .expect("no misuse");
    assert_eq!(ran(), [2, 1]);
    assert_eq!(gradients.len(), 2);
}

/// Frozen modules whose input wants no gradient have nothing to give.
#[test]
fn what_wants_no_gradient_runs_once() {
    own_process!();
    let device = device();
    let frozen = LinearConfig::new(WIDTH, WIDTH).init(&device).no_grad();
    let head = LinearConfig::new(WIDTH, 1).init(&device);
    let count = Arc::new(AtomicUsize::new(0));
    let mut tape = Tape::new(StepSeed::new(0, 0));
    let counted = Arc::clone(&count);
    let features = tape.checkpoint_with(
        &frozen,
        Tensor::<2>::ones([ROWS, WIDTH], &device),
        move |module, input| {
            counted.fetch_add(1, Ordering::Relaxed);
            module.forward(input)
        },
    );
    let loss = head.forward(features).mean();
    let gradients = tape.backward(loss, &head).expect("no misuse");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(gradients.len(), 2);
    assert!(Module::valid(&head).num_params() > 0);
}
