//! A recorded step counts what the program comes to hold later.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    meter::{HostMeter, Meter},
    record::RecordError,
};
use rekindle_plan::{Bytes, Planner};

#[test]
fn what_comes_into_use_later_is_counted() {
    own_process!();
    const ROWS: usize = 4096;
    let device = Device::flex().autodiff();
    let mut model: Vec<Linear> = (0..12)
        .map(|_| LinearConfig::new(64, 64).init(&device))
        .collect();
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    let input = Tensor::<2>::random([ROWS, 64], Distribution::Default, &device);
    let recorded = || rekindle::record(&model, &input, loss).expect("recorded");
    let plain = recorded().plain().expect("planned").plan().predicted_peak;
    let budget = plain + Bytes(1 << 20);
    let step = recorded().within(budget).expect("planned");
    let mut optimizer = SgdConfig::new().init();
    let peak = |output: &rekindle::record::Output<()>| output.memory.peak_in_use_bytes;
    let output = step.run(&model, input.clone()).expect("run");
    assert_eq!(step.plan().repeated, 0);
    assert!(peak(&output) <= budget);
    model = optimizer.step(1e-3, model, output.gradients);

    // What updates leave in burn's graph goes with the next step.
    let mut in_use = Vec::new();
    for _ in 0..12 {
        let output = step.run(&model, input.clone()).expect("run");
        in_use.push(output.memory.in_use_bytes);
        model = optimizer.step(1e-3, model, output.gradients);
    }
    let most = in_use.iter().max().copied().unwrap_or_default();
    assert!(most <= in_use[3] + Bytes(2048), "{in_use:?}");

    // Something else that the program holds from here on.
    let held = Tensor::<2>::zeros([ROWS, 64 * 6], &device);
    let output = step.run(&model, input.clone()).expect("run");
    assert!(step.plan().repeated > 0, "planned again, with less room");
    assert!(peak(&output) <= budget, "{:?} in {budget}", output.memory);
    drop((output, held));

    let most = Tensor::<2>::zeros([ROWS, 64 * 40], &device);
    let refused = step.run(&model, input.clone()).err();
    assert!(
        matches!(refused, Some(RecordError::Infeasible { .. })),
        "{refused:?}"
    );
    assert!(
        step.plan().predicted_peak > budget,
        "the plain order stands for the step"
    );
    drop(most);
    assert!(step.run(&model, input).is_ok());
}

const WIDE: usize = 2304;

/// Both weights have more than 4 MiB: of such parameters only some rows are tried for updates in the backward pass.
fn wide(device: &Device) -> Vec<Linear> {
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
    vec![layer(512, WIDE), layer(WIDE, 512)]
}

#[expect(clippy::ptr_arg, reason = "the module is a `Vec`, not a slice")]
fn loss(model: &Vec<Linear>, input: Tensor<2>) -> Tensor<1> {
    let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
    output.square().mean()
}

/// Updates the model by burn alone.
fn stepped(model: Vec<Linear>, input: &Tensor<2>, optimizer: &mut ModuleOptimizer) -> Vec<Linear> {
    let gradients = loss(&model, input.clone()).backward();
    let gradients = GradientsParams::from_grads(gradients, &model);
    optimizer.step(1e-3, model, gradients)
}

#[test]
fn an_optimizer_that_has_stepped_is_tried_and_keeps_its_state() {
    own_process!();
    let device = Device::flex().autodiff();
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    for optimizer in [SgdConfig::new().init(), AdamConfig::new().init()] {
        let mut own = optimizer.clone();
        let model = stepped(wide(&device), &input, &mut own);
        let loaded = optimizer.load_record(own.to_record());
        for own in [own, loaded] {
            let state = |own: &ModuleOptimizer| own.into_bytes().expect("a record").to_vec();
            let before = state(&own);
            for in_backward in [false, true] {
                let recorded = rekindle::record(&model, &input, loss).expect("recorded");
                let recorded = match in_backward {
                    true => recorded.with_update_in_backward(&own),
                    false => recorded.with_optimizer(&own),
                };
                recorded.plain().expect("planned");
            }
            assert!(state(&own) == before, "another state");
        }
    }
}

/// What plans, tables and headers differ by from one recording to the next.
const LEEWAY: u64 = 1 << 18;
/// How far a predicted peak may be above the measured one.
const PREDICTED: f64 = 0.03;

#[test]
fn only_the_parameters_without_a_state_are_counted_with_one() {
    own_process!();
    let device = Device::flex().autodiff();
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let model = wide(&device);
    let first = &model[0].weight;
    let mut gradients = loss(&model, input.clone()).backward();
    let gradients = GradientsParams::from_params(&mut gradients, &model, &[first.id]);
    let mut own = AdamConfig::new().init();
    let model = own.step(1e-3, model.clone(), gradients);
    let recorded = rekindle::record(&model, &input, loss).expect("recorded");
    let step = recorded.with_optimizer(&own).plain().expect("planned");
    // Two moments of each number of the others.
    let others = model.num_params() - model[0].weight.shape().num_elements();
    let (state, expected) = (step.optimizer_cost().state_bytes.0, 8 * others as u64);
    assert!(state.abs_diff(expected) < LEEWAY, "{state}, not {expected}");
}

#[test]
fn a_state_that_is_in_use_is_not_counted_again() {
    own_process!();
    let device = Device::flex().autodiff();
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let meter = HostMeter::new().expect("installed");
    for in_backward in [false, true] {
        let mut model = wide(&device);
        let smallest = |model: &Vec<Linear>, own: &ModuleOptimizer, budget: Option<Bytes>| {
            let recorded = rekindle::record(model, &input, loss).expect("recorded");
            let mut step = match in_backward {
                true => recorded.with_update_in_backward(own).plain(),
                false => recorded.with_optimizer(own).plain(),
            }
            .expect("planned");
            let smallest = match step.set_budget(Bytes(1), Planner::Auto) {
                Err(RecordError::Infeasible { smallest, .. }) => smallest,
                other => panic!("{other:?}"),
            };
            let budget = budget.unwrap_or(smallest);
            step.set_budget(budget, Planner::Auto)
                .expect("above the smallest");
            (step, smallest)
        };
        let mut own = AdamConfig::new().init();
        let (step, expected) = smallest(&model, &own, None);
        drop(step);
        // Two moments of each number.
        let state = 8 * model.num_params() as u64;
        assert!(LEEWAY < state / 8);
        model = stepped(model, &input, &mut own);
        let (_, found) = smallest(&model, &own, None);
        assert!(
            found.0.abs_diff(expected.0) < LEEWAY,
            "{found} with a state, {expected} without; update in backward {in_backward}"
        );

        let record = own.to_record();
        drop(own);
        let mut own = AdamConfig::new().init().load_record(record);
        let budget = expected + Bytes(LEEWAY);
        let (step, found) = smallest(&model, &own, Some(budget));
        assert!(
            found.0.abs_diff(expected.0) < LEEWAY,
            "{found} with a loaded state, {expected} without; update in backward {in_backward}"
        );
        let mut peak = Bytes(0);
        for _ in 0..3 {
            let input = input.clone();
            let output = match in_backward {
                true => step.run_updating(&mut model, input, 1e-3, &mut own),
                false => step.run(&model, input),
            };
            let output = output.expect("runs");
            peak = peak.max(output.memory.peak_in_use_bytes);
            if !in_backward {
                meter.start_interval();
                model = own.step(1e-3, model, output.gradients);
                peak = peak.max(meter.read().peak_in_use_bytes);
            }
        }
        let predicted = step.plan().predicted_peak;
        eprintln!("smallest {expected} and {found}, predicted {predicted}, measured {peak}");
        assert!(peak <= budget, "{peak} in {budget}");
        assert!(
            predicted.0 as f64 <= peak.0 as f64 * (1.0 + PREDICTED),
            "predicted {predicted}, measured {peak}; update in backward {in_backward}"
        );
    }
}
