//! What a recorded step holds besides tensors is small.

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::record::Comparison;
use rekindle_plan::Bytes;

const LAYERS: usize = 300;
const WIDTH: usize = 10;
const ROWS: usize = 32;

/// Bytes for each operation of a step of equal layers: 68 without recomputation, 73 with it, and a quarter more.
/// Operations that differ from all others take about 750 more.
const MOST_BYTES: usize = 90;

#[test]
fn a_step_takes_few_bytes_for_each_operation() {
    own_process!();
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let model: Vec<Linear> = (0..LAYERS).map(layer).collect();
    let input = Tensor::<2>::random([ROWS, WIDTH], Distribution::Default, &device);
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    let recorded = || {
        let recorded = rekindle::record(&model, &input, loss).expect("recorded");
        // A comparison takes more than this step.
        recorded.with_comparison(Comparison::Never)
    };
    // A first step leaves what the process makes once: threads, devices, parameters.
    let first = recorded().plain().expect("planned");
    first.run(&model, input.clone()).expect("run");
    let operations = first.graph().0.operations.len();
    assert!(operations > 10 * LAYERS);
    drop(first);

    let before = rekindle_alloc::in_use();
    let for_each = || (rekindle_alloc::in_use() - before) / operations;

    let plain = recorded().plain().expect("planned");
    assert!(for_each() < MOST_BYTES, "plain: {} bytes", for_each());
    let peak = plain.plan().predicted_peak;
    drop(plain);

    // A tenth of all activations less: each layer has two.
    let activations = 2 * LAYERS * ROWS * WIDTH * size_of::<f32>();
    let budget = peak - Bytes(activations as u64 / 10);
    let planned = recorded().within(budget).expect("planned");
    assert!(planned.plan().repeated > 0);
    assert!(for_each() < MOST_BYTES, "planned: {} bytes", for_each());
}
