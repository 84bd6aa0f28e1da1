//! What a tape saves.

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Device, Distribution, Tensor, activation::gelu},
};
use rekindle::{StepSeed, Tape};

const WIDTH: usize = 32;
const ROWS: usize = 4096;
const CHECKPOINTS: usize = 6;
/// Layers in one checkpoint.
const DEPTH: usize = 8;
/// Bytes of one activation.
const ACTIVATION: usize = ROWS * WIDTH * 4;

#[expect(clippy::ptr_arg, reason = "the module of a checkpoint is the vector")]
fn forward(layers: &Vec<Linear>, input: Tensor<2>) -> Tensor<2> {
    layers.iter().fold(input, |x, layer| gelu(layer.forward(x)))
}

/// Bytes above the start while `step` runs: what it leaves when the forward is over, and the most at any time.
fn measure(step: impl FnOnce(&dyn Fn())) -> (usize, usize) {
    rekindle_alloc::reset_peak();
    let start = rekindle_alloc::in_use();
    let after_forward = std::cell::Cell::new(0);
    step(&|| after_forward.set(rekindle_alloc::in_use() - start));
    (after_forward.get(), rekindle_alloc::peak() - start)
}

#[test]
fn activations_inside_are_dropped() {
    own_process!();
    let device = Device::flex().autodiff();
    let linear = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let model: Vec<Vec<_>> = (0..CHECKPOINTS)
        .map(|_| (0..DEPTH).map(linear).collect())
        .collect();
    let input = Tensor::<2>::random([ROWS, WIDTH], Distribution::Default, &device);
    // Parameters start lazily.
    let _ = forward(&model.concat(), input.clone()).mean().backward();

    let (plain_kept, plain_peak) = measure(|forward_over| {
        let output = model
            .iter()
            .fold(input.clone(), |x, layers| forward(layers, x));
        let loss = output.mean();
        forward_over();
        let _ = loss.backward();
    });
    let (kept, peak) = measure(|forward_over| {
        let mut tape = Tape::new(StepSeed::new(0, 0));
        let output = model.iter().fold(input.clone(), |x, layers| {
            tape.checkpoint_with(layers, x, forward)
        });
        let loss = output.mean();
        forward_over();
        tape.backward(loss, &model).expect("no misuse");
    });

    // The plain run keeps at least one activation for each layer.
    let layers = CHECKPOINTS * DEPTH;
    assert!(plain_kept >= layers * ACTIVATION, "{plain_kept}");
    // A tape keeps the input of each checkpoint; the model's input is the caller's. A quarter more for all that is
    // no activation.
    let inputs = CHECKPOINTS * ACTIVATION;
    assert!(kept <= inputs + ACTIVATION / 4, "{kept} for {inputs}");
    // In the backward one checkpoint is there with all its activations, of which there are plain_kept / CHECKPOINTS,
    // and a few gradients.
    let bound = inputs + plain_kept / CHECKPOINTS + 4 * ACTIVATION;
    assert!(
        peak <= bound && bound < plain_peak / 2,
        "{peak}, {bound}, {plain_peak}"
    );
    println!("plain {plain_kept} {plain_peak}, tape {kept} {peak}");
}
