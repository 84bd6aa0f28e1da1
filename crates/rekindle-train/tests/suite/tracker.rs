//! The tensors that a tracked step makes and frees, against those that the layers must make.

use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    session::{Event, Job, ScheduleRequest, run},
    settings::{OptimizerKind, TrainSettings},
    timeline::Pass,
    tracker::TrackedPass,
};

use crate::jobs::{classifier, vectors};

const BATCH: usize = 32;
const INPUT: usize = 64;
const HIDDEN: usize = 48;
const OUTPUT: usize = 40;

/// Tensors of a shape that appeared in a pass, less those that went.
fn more(pass: &TrackedPass, shape: [usize; 2]) -> i64 {
    let [appeared, went] = [&pass.appeared, &pass.went].map(|tensors| -> i64 {
        let of_shape = tensors.iter().filter(|one| one.shape == shape);
        let counts = of_shape.map(|one| {
            let values = one.count * shape.iter().product::<usize>();
            assert_eq!(one.bytes, Bytes((values * size_of::<f32>()) as u64));
            assert_eq!(one.dtype, "f32");
            one.count as i64
        });
        counts.sum()
    });
    appeared - went
}

#[test]
fn each_pass_names_the_tensors_that_its_layers_make_and_free() {
    own_process!();
    let linear = |out| LayerSpec::Linear { out, bias: true };
    let model = ModelSpec {
        input: SampleShape::float([INPUT]),
        layers: vec![linear(HIDDEN), linear(OUTPUT)],
    };
    let data = vectors(INPUT, OUTPUT, 100);
    let settings = TrainSettings {
        epsilon: 1e-5,
        ..classifier(4, BATCH, (OptimizerKind::Adam, 0.0, 0.0))
    };
    let request = ScheduleRequest::Plan(Request::of(Planner::Segments(Some(2)), None));
    let job = Job {
        track: true,
        ..Job::new(&model, &*data.train, &settings, request)
    };
    let mut steps = Vec::new();
    run(&job, DeviceId::Cpu, &mut |event| {
        if let Event::Tracked(passes) = event {
            steps.push(passes.to_vec());
        }
    })
    .expect("trains");

    assert_eq!(steps.len(), 3, "the first three steps");
    use Pass::{Backward, Forward, Loss, Optimizer};
    for (index, step) in steps.iter().enumerate() {
        assert!(step.iter().all(|pass| pass.step == index + 1));
        let passes: Vec<_> = step.iter().map(|pass| (pass.pass, pass.stage)).collect();
        let expected = [
            (Forward, Some(0)),
            (Forward, Some(1)),
            (Loss, None),
            (Backward, Some(1)),
            // A linear layer's backward needs its input, not its output: nothing runs again.
            (Backward, Some(0)),
            (Optimizer, None),
        ];
        assert_eq!(passes, expected);
        let [first, second, loss, of_second, of_first, update] = &step[..] else {
            unreachable!("as many as expected");
        };
        let (hidden, output) = ([BATCH, HIDDEN], [BATCH, OUTPUT]);
        let weights = [[INPUT, HIDDEN], [HIDDEN, OUTPUT]];
        // The boundary appears, and stays until the backward above it is over.
        assert_eq!(more(first, hidden), 1);
        assert_eq!(more(second, hidden), 0);
        assert_eq!(more(loss, hidden), 0);
        // The output and its gradient are gone when its backward is over.
        assert_eq!(more(second, output), 1);
        assert_eq!(more(loss, output) + more(of_second, output), -1);
        // The weight's gradient appears, and the boundary makes room for its own gradient.
        assert_eq!(more(of_second, weights[1]), 1);
        assert_eq!(more(of_second, hidden), 0);
        // Nobody wants the input's gradient, which would be as large as the batch.
        assert_eq!(more(of_first, hidden), -1);
        assert_eq!(more(of_first, weights[0]), 1);
        assert_eq!(more(of_first, [BATCH, INPUT]), 0);
        // The update frees both gradients.
        for shape in weights {
            assert_eq!(more(update, shape), -1);
        }
        assert!(step.iter().all(|pass| pass.in_use_bytes > Bytes(0)));
    }
}
