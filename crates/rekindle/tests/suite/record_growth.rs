//! A recorded step counts what the program comes to hold later.

use burn::{
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::record::RecordError;
use rekindle_plan::Bytes;

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
    let peak = |output: &rekindle::record::Output<(), Tensor<2>>| output.memory.peak_in_use_bytes;
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
