//! A library user's stack within a budget: measured, planned and run by three calls.

use crate::models;
use burn::{
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    Executor, StepSeed,
    meter::{HostMeter, Meter},
    profile::Profiler,
};
use rekindle_plan::{Bytes, PlanError, PlanRequest};

const ROWS: usize = 20_000;
const DEPTH: usize = 12;

#[test]
fn a_stack_trains_within_the_budget_that_it_was_given() {
    own_process!();
    let device = Device::flex().autodiff();
    let meter = HostMeter::new().expect("installed");
    let model = models::mlp(DEPTH, &device);
    let rows = |count| Tensor::<2>::random([count, models::WIDTH], Distribution::Default, &device);
    let input = rows(ROWS);
    let loss = |output: Tensor<2>| output.powf_scalar(2.0).mean();
    let profiler = Profiler {
        device: &device,
        meter: &meter,
        optimizer: &AdamConfig::new().init(),
    };
    let (measured, mut model) = profiler.measure(model, &input, loss);

    let error = measured.plan(&PlanRequest::within(Bytes(1)));
    let Err(PlanError::Infeasible { smallest, .. }) = error else {
        panic!("one byte is enough: {error:?}");
    };
    let plain = measured.plain().expect("a plan").peak;
    let budget = Bytes((smallest.0 + plain.0) / 2);
    let plan = measured
        .plan(&PlanRequest::within(budget))
        .expect("above the smallest");
    assert!(!plan.schedule.is_plain());

    let executor = Executor::new(plan.schedule).planned_for(&input);
    let mut optimizer = AdamConfig::new().init();
    meter.start_interval();
    for step in 0..3 {
        let output = executor
            .step(&model, input.clone(), StepSeed::new(0, step), loss)
            .expect("fits");
        model = optimizer.step(1e-3, model, output.gradients);
    }
    let peak = meter.read().peak_in_use_bytes;
    println!(
        "budget {budget}, predicted {}, measured {peak}, plain {plain}",
        plan.peak
    );
    assert!(peak <= budget, "{peak} > {budget}");

    // A last, smaller batch runs; a larger one is refused before anything runs.
    let small = rows(ROWS / 3);
    let step = |input| executor.step(&model, input, StepSeed::new(0, 3), loss);
    let gradients = step(small.clone()).expect("smaller").gradients;
    let plainly = GradientsParams::from_grads(loss(model.forward(small)).backward(), &model);
    assert_eq!(gradients.len(), plainly.len());
    let error = step(rows(ROWS + 1)).expect_err("larger").to_string();
    assert!(
        error.contains("[[20000, 12]]") && error.contains("[[20001, 12]]"),
        "{error}"
    );
}
