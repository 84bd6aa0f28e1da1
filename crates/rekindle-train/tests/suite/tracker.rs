//! What a tracked step says that came and went, against what the layers must allocate.

use rekindle_plan::{Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    session::{Job, Observer, ScheduleRequest, run},
    settings::OptimizerSettings,
    tracker::TrackedMoment,
};

use crate::jobs::{classifier, vectors};

const BATCH: usize = 32;
/// All sizes differ, and are large enough to be told apart.
const INPUT: usize = 64;
const HIDDEN: usize = 48;
const OUTPUT: usize = 40;

struct Steps(Vec<Vec<TrackedMoment>>);

impl Observer for Steps {
    fn tracked(&mut self, moments: &[TrackedMoment]) {
        self.0.push(moments.to_vec());
    }
}

/// Blocks of a shape that came less those that went, in all moments with this name.
fn balance(step: &[TrackedMoment], moment: &str, shape: [usize; 2]) -> i64 {
    let found = step.iter().filter(|tracked| tracked.moment == moment);
    let count = |blocks: &[rekindle_train::tracker::Blocks]| -> i64 {
        let of_shape = blocks
            .iter()
            .filter(|blocks| blocks.shape.as_deref() == Some(&shape));
        of_shape
            .map(|blocks| blocks.count.expect("counted") as i64)
            .sum()
    };
    found
        .map(|tracked| count(&tracked.appeared) - count(&tracked.went))
        .sum()
}

#[test]
fn what_came_and_went_is_what_the_layers_allocate() {
    own_process!();
    let linear = |out| LayerSpec::Linear { out, bias: true };
    let model = ModelSpec {
        input: SampleShape::float([INPUT]),
        layers: vec![linear(HIDDEN), linear(OUTPUT)],
    };
    let data = vectors(INPUT, OUTPUT, 100);
    let adam = OptimizerSettings::Adam {
        betas: [0.9, 0.999],
        epsilon: 1e-5,
        weight_decay: 0.0,
    };
    let settings = classifier(4, BATCH, adam);
    let request = ScheduleRequest::Plan(Request {
        planner: Planner::Segments(Some(2)),
        ..Request::default()
    });
    let job = Job {
        track: true,
        ..Job::new(&model, &*data.train, &settings, request)
    };
    let mut steps = Steps(Vec::new());
    run(&job, DeviceId::Cpu, &mut steps).expect("trains");

    let Steps(steps) = steps;
    assert_eq!(steps.len(), 3, "the first three steps");
    for (index, step) in steps.iter().enumerate() {
        let moments: Vec<&str> = step.iter().map(|tracked| tracked.moment.as_str()).collect();
        let expected = [
            "batch",
            "forward 0",
            "forward 1",
            "loss",
            "backward 1",
            // A linear layer's backward needs its input, not its output: nothing runs again.
            "backward 0",
            "optimize",
            "end",
        ];
        assert_eq!(moments, expected);
        let balance = |moment, shape| balance(step, moment, shape);
        assert_eq!(balance("batch", [BATCH, INPUT]), 1);
        // The boundary comes, and stays until the backward above it is over.
        assert_eq!(balance("forward 0", [BATCH, HIDDEN]), 1);
        assert_eq!(balance("forward 1", [BATCH, HIDDEN]), 0);
        // The last output goes when its backward starts; the weight's gradient comes, and the boundary makes room for its
        // own gradient.
        assert_eq!(balance("backward 1", [HIDDEN, OUTPUT]), 1);
        assert_eq!(balance("backward 1", [BATCH, HIDDEN]), 0);
        // Nobody wants the input's gradient.
        assert_eq!(balance("backward 0", [INPUT, HIDDEN]), 1);
        assert_eq!(balance("backward 0", [BATCH, INPUT]), 0);
        // Both gradients go; in the first step two moments come for each parameter.
        let adam = if index == 0 { 2 - 1 } else { -1 };
        assert_eq!(
            balance("optimize", [INPUT, HIDDEN]),
            adam,
            "step {}",
            index + 1
        );
        assert_eq!(
            balance("optimize", [HIDDEN, OUTPUT]),
            adam,
            "step {}",
            index + 1
        );
    }
}
