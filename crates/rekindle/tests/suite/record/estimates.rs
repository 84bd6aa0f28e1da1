//! Estimates from shapes alone, for models that no machine here could hold.

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use rekindle::record::Assumed;
use rekindle_plan::{Bytes, Planner};

const DEPTH: u64 = 40;
const WIDTH: u64 = 16_384;
const ROWS: u64 = 65_536;
/// Of the machine whose seconds are estimated.
const NOMINAL_FLOPS: f64 = 60e9;

#[test]
fn a_stack_larger_than_any_machine_is_counted_in_closed_form() {
    own_process!();
    let make = |device: &Device| {
        let width = WIDTH as usize;
        let layer = || {
            LinearConfig::new(width, width)
                .with_bias(false)
                .init(device)
        };
        let model: Vec<Linear> = (0..DEPTH).map(|_| layer()).collect();
        (model, Tensor::<2>::empty([ROWS as usize, width], device))
    };
    let estimate = rekindle::estimate(Assumed::default(), make, |model: &Vec<Linear>, input| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x));
        output.mean()
    })
    .expect("recorded");

    let weights = DEPTH * WIDTH * WIDTH;
    let activation = Bytes(4 * ROWS * WIDTH);
    assert_eq!((estimate.trainable, estimate.frozen), (weights, 0));
    assert_eq!(estimate.parameter_bytes, Bytes(4 * weights));
    assert_eq!(estimate.gradient_bytes, Bytes(4 * weights));
    assert_eq!(estimate.input_bytes, activation);

    // Weights and every layer's input when the backward pass starts, with a few tensors more beside.
    let least = Bytes(4 * weights + activation.0 * DEPTH);
    let most = least + Bytes(activation.0 * 4);
    let peak = estimate.plain_peak;
    assert!(
        least <= peak && peak <= most,
        "{peak} between {least} and {most}"
    );
    let smallest = estimate.profile.smallest_budget(Planner::Auto);
    let smallest = smallest.expect("planned");
    assert!(smallest < peak);
    // Weights and gradients are there at the update; a layer's backward reads two activations and makes one.
    let bound = Bytes(4 * weights * 2).max(Bytes(4 * weights + 3 * activation.0));
    let least = estimate.profile.least_bytes();
    let enough = estimate.profile.leanest_stages().expect("planned");
    assert!(
        bound <= least && least <= smallest,
        "{bound} {least} {smallest}"
    );
    // A budget holds back 1% of it.
    let most = Bytes(peak.0 + peak.0 / 50);
    assert!(
        smallest <= enough && enough <= most,
        "{smallest} {enough} {most}"
    );
    let budget = Bytes((smallest.0 + peak.0) / 2);
    let plan = estimate.profile.plan(Some(budget), Planner::Auto);
    let plan = plan.expect("fits");
    assert!(plan.predicted_peak <= budget, "{plan}");
    // Forward and two products in the backward; the input wants no gradient.
    let product = 2.0 * (ROWS * WIDTH * WIDTH) as f64;
    let products = product * (3 * DEPTH - 1) as f64;
    let flops = plan.plain_time.0 * NOMINAL_FLOPS;
    assert!((flops / products - 1.0).abs() < 1e-2, "{flops}");
    // At most one forward more, of three passes.
    let work = plan.predicted_time.0 / plan.plain_time.0;
    assert!((1.0..4.0 / 3.0).contains(&work), "{work}");
}

/// The rows that a router takes, for example: numbers that differ in the last digit could give others.
#[test]
fn what_is_chosen_by_size_or_order_is_chosen_once() {
    let make = |device: &Device| {
        let layer = LinearConfig::new(16, 16).init(device);
        (layer, Tensor::<2>::empty([8, 16], device))
    };
    let estimate = rekindle::estimate(Assumed::default(), make, |layer: &Linear, input| {
        let output = layer.forward(input);
        let (best, rows) = output.clone().topk_with_indices(2, 1);
        let order = output.clone().argsort(1).float();
        let first = output.clone().argmax(1).float();
        (output * order * first).sum() + (best * rows.float()).sum()
    });
    let graph = estimate.expect("recorded").profile.graph;
    let once = graph.operations.iter().filter(|one| !one.repeatable);
    assert_eq!(once.count(), 3);
}
