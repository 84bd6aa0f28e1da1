//! A batch that is run in parts trains as the whole batch does.

use rekindle_plan::{Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::StepRecord,
    session::{Job, ScheduleRequest, run},
    settings::{Accumulate, OptimizerKind, TrainSettings},
};

use crate::jobs::{Steps, classifier, vectors};

const WIDTH: usize = 16;
const BATCH: usize = 12;

/// Sums over the batch are taken in another order, and losses depend on all updates before.
const TOLERANCE: f64 = 1e-5;

fn train(accumulate: usize, segments: usize) -> Vec<StepRecord> {
    let linear = LayerSpec::Linear {
        out: WIDTH,
        bias: true,
    };
    let model = ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers: vec![
            linear.clone(),
            LayerSpec::Tanh,
            linear.clone(),
            LayerSpec::Tanh,
            linear,
        ],
    };
    let data = vectors(WIDTH, WIDTH, 40);
    let momentum = (OptimizerKind::Sgd, 0.9, 0.0);
    let settings = TrainSettings {
        accumulate: Accumulate::Parts(accumulate),
        ..classifier(5, BATCH, momentum)
    };
    let request = ScheduleRequest::Plan(Request::of(Planner::Segments(Some(segments)), None));
    let job = Job::new(&model, &*data.train, &settings, request);
    let mut steps = Steps::default();
    run(&job, DeviceId::Cpu, &mut |event| steps.tell(event)).expect("trains");
    steps.0
}

#[test]
fn parts_of_a_batch_train_as_the_whole_does() {
    own_process!();
    let whole = train(1, 1);
    for (accumulate, segments) in [(2, 1), (3, 2), (BATCH, 5)] {
        let parts = train(accumulate, segments);
        for (whole, part) in whole.iter().zip(&parts) {
            let difference = (whole.loss - part.loss).abs() / whole.loss;
            assert!(
                difference < TOLERANCE,
                "{accumulate} parts, step {}: {} instead of {}",
                whole.step,
                part.loss,
                whole.loss
            );
            assert_eq!(whole.accuracy, part.accuracy);
        }
    }
    // The schedule makes no difference at all.
    let (plain, segmented) = (train(3, 1), train(3, 3));
    let last_loss = |steps: &[StepRecord]| steps.last().expect("steps").loss.to_bits();
    assert_eq!(last_loss(&plain), last_loss(&segmented));
}
