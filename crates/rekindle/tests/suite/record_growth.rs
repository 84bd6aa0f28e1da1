//! A recorded step counts what the program comes to hold later.

use burn::{
    nn::{Linear, LinearConfig},
    optim::SgdConfig,
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
