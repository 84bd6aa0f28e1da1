//! Memory in use and resident memory stay what they are, step after step, and after steps that fail.

use burn::{
    nn::{Linear, LinearConfig},
    optim::SgdConfig,
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{checkpoint_sequential, record::RecordError};
use rekindle_plan::Request;
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    session::{Event, Job, ScheduleRequest, run},
    settings::{OnNonFinite, OptimizerKind, TrainSettings},
};

use crate::{
    jobs::{classifier, vectors},
    models,
    watch::{STEPS, WARM_UP, Watch},
};

#[test]
fn checkpointed_modules_hold_no_more_after_hundreds_of_steps() {
    own_process!();
    let device = Device::flex().autodiff();
    let mut model = models::mlp(6, &device);
    let mut optimizer = SgdConfig::new().init();
    let mut watch = Watch::new();
    let input = Tensor::<2>::random([8, models::WIDTH], Distribution::Default, &device);
    for _ in 0..STEPS {
        let loss = |output: Tensor<2>| output.square().mean();
        let output = checkpoint_sequential(&model, 3, input.clone(), loss);
        model = optimizer.step(1e-3, model, output.expect("fits").gradients);
        watch.note();
    }
    watch.assert_flat("modules");
}

#[test]
fn a_checkpointed_recording_holds_no_more_after_hundreds_of_steps() {
    own_process!();
    let device = Device::flex().autodiff();
    let mut model: Vec<Linear> = (0..6)
        .map(|_| LinearConfig::new(16, 16).init(&device))
        .collect();
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        model
            .iter()
            .fold(input, |x, layer| layer.forward(x).tanh())
            .square()
            .mean()
    };
    let input = Tensor::<2>::random([64, 16], Distribution::Default, &device);
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .segments(3)
        .expect("planned");
    assert!(step.plan().repeated > 0);
    let mut optimizer = SgdConfig::new().init();
    let mut watch = Watch::new();
    for _ in 0..STEPS {
        let output = step.run(&model, input.clone()).expect("run");
        model = optimizer.step(1e-3, model, output.gradients);
        watch.note();
    }
    watch.assert_flat("recorded");
}

/// Every step's loss is no number, and none is updated.
#[test]
fn steps_that_are_skipped_leave_nothing() {
    own_process!();
    let model = ModelSpec {
        input: SampleShape::float([4]),
        layers: vec![
            LayerSpec::Linear { out: 8, bias: true },
            LayerSpec::BatchNorm,
            LayerSpec::Linear { out: 3, bias: true },
        ],
    };
    let data = vectors(4, 3, 16);
    let sgd = (OptimizerKind::Sgd, 0.9, 0.0);
    let settings = TrainSettings {
        on_nonfinite: OnNonFinite::Skip,
        learning_rate: Some(1e30),
        ..classifier(STEPS, 4, sgd)
    };
    let schedule = ScheduleRequest::Plan(Request::default());
    let job = Job::new(&model, &*data.train, &settings, schedule);
    let mut watch = Watch::new();
    let record = run(&job, DeviceId::Cpu, &mut |event| {
        if let Event::Stepped { .. } = event {
            watch.note();
        }
    })
    .expect("trains");
    let skipped = record.nonfinite_steps;
    assert!(skipped > STEPS - WARM_UP, "{skipped}");
    watch.assert_flat("skipped steps");
}

#[test]
fn steps_that_fail_leave_nothing() {
    own_process!();
    let device = Device::flex().autodiff();
    let input = Tensor::<2>::random([8, models::WIDTH], Distribution::Default, &device);
    let model = models::mlp(6, &device);

    // A loss that is no scalar.
    let mut watch = Watch::new();
    for _ in 0..STEPS {
        let loss = |output: Tensor<2>| output.flatten::<1>(0, 1);
        let refused = checkpoint_sequential(&model, 3, input.clone(), loss);
        assert!(refused.is_err());
        watch.note();
    }
    watch.assert_flat("a loss that is no scalar");

    // A recorded step that gives a loss that is no number.
    let layer = LinearConfig::new(models::WIDTH, 4).init(&device);
    let loss = |layer: &Linear, input: Tensor<2>| layer.forward(input).square().mean();
    let step = rekindle::record(&layer, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let wrong = input.clone() * f32::NAN;
    let mut watch = Watch::new();
    for _ in 0..STEPS {
        let refused = step.run(&layer, wrong.clone()).err();
        assert!(
            matches!(refused, Some(RecordError::NotFinite { .. })),
            "{refused:?}"
        );
        watch.note();
    }
    watch.assert_flat("a recorded step without a loss");
}
