//! The plain steps beside which a run's own are measured.

use std::sync::Mutex;

use rekindle_plan::{Bytes, Planner, Request, Seconds};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::{Measured, RunRecord, Slowdown, Turn},
    session::{Job, ScheduleRequest, run},
    settings::{OptimizerKind, TrainSettings},
};

use crate::jobs::{classifier, through, vectors};

const BATCH: usize = 1024;
const STEPS: usize = 2;

/// Turns of a comparison, and steps of each kind in a turn.
const TURNS: usize = 3;
const TURN_STEPS: usize = 3;

fn measured(step: f64, range: [f64; 2]) -> Measured {
    Measured {
        peak: Bytes(1),
        in_use: Bytes(1),
        step: Seconds(step),
        range: Some(range.map(Seconds)),
    }
}

#[test]
fn a_slowdown_below_the_noise_is_no_gain() {
    let plain = measured(8.0, [8.0, 10.0]);
    let said = |planned: &[Measured]| {
        let turn = |&planned| Turn { planned, plain };
        let turns: Vec<Turn> = planned.iter().map(turn).collect();
        Slowdown::of(&turns).map(|slowdown| slowdown.to_string())
    };
    assert_eq!(said(&[]), None);
    // The quickest is quicker than any plain step, but the slowest is not.
    let alike = measured(7.0, [6.0, 9.0]);
    let same = "about the same step time (0.60x to 1.12x)";
    assert_eq!(said(&[alike]).as_deref(), Some(same));
    let quicker = measured(4.0, [4.0, 6.0]);
    let gain = "0.50x the step time (0.40x to 0.75x)";
    assert_eq!(said(&[quicker, quicker]).as_deref(), Some(gain));
    let slower = measured(16.0, [12.0, 20.0]);
    let loss = "2.00x the step time (1.20x to 2.50x)";
    assert_eq!(said(&[slower]).as_deref(), Some(loss));
    // One turn of three leaves it open.
    let open = "about the same step time (0.40x to 1.12x)";
    assert_eq!(said(&[quicker, alike, quicker]).as_deref(), Some(open));
}

/// A run in 4 segments within a budget, if any, and the order of its batches, `.`, and of another process's, `p`.
fn compared(budget: Option<Bytes>, compare: bool, elsewhere: bool) -> (RunRecord, String) {
    let order = Mutex::new(String::new());
    let push = |what| order.lock().expect("not poisoned").push(what);
    let data = vectors(64, 4, 2 * BATCH);
    let data = through(&*data.train, |batch, _| {
        push('.');
        batch
    });
    let linear = |out| LayerSpec::Linear { out, bias: true };
    let layers = std::iter::repeat_n(64, 16).chain([4]).map(linear);
    let model = ModelSpec {
        input: SampleShape::float([64]),
        layers: layers.collect(),
    };
    let settings = TrainSettings {
        learning_rate: Some(1e-6),
        ..classifier(STEPS, BATCH, (OptimizerKind::Sgd, 0.0, 0.0))
    };
    let request = Request::of(Planner::Segments(Some(4)), budget);
    let measure = |steps: usize| {
        assert_eq!(steps, TURN_STEPS);
        push('p');
        Some(measured(1e-3, [1e-3; 2]))
    };
    let job = Job {
        compare,
        plain_elsewhere: elsewhere.then_some(&measure),
        ..Job::new(&model, &data, &settings, ScheduleRequest::Plan(request))
    };
    let record = run(&job, DeviceId::Cpu, &mut |_| ()).expect("trains");
    let order = order.lock().expect("not poisoned").clone();
    (record, order)
}

#[test]
fn steps_by_the_plan_and_plain_ones_take_turns() {
    own_process!();
    let (alone, trained) = compared(None, false, true);
    assert_eq!(alone.plain, None, "too short to be compared unasked");
    let trained = trained.len();

    // In one process where the budget allows both.
    let roomy = Bytes(2 * alone.plan.plain_peak.0);
    for (budget, elsewhere) in [(None, false), (Some(roomy), true)] {
        let (record, order) = compared(budget, true, elsewhere);
        assert_eq!(order, ".".repeat(trained + 2 * TURNS * TURN_STEPS));
        assert_eq!(record.turns.len(), TURNS);
        for Turn { planned, plain } in &record.turns {
            assert!(planned.peak < plain.peak, "{planned:?} {plain:?}");
        }
        // A run's peak, the process's until its end, is not that of its plain steps; the second run is after the first's.
        let plain = record.plain.expect("compared");
        assert!(elsewhere || record.measured.peak < plain.peak);
    }

    // Else the plain steps are another process's.
    let (record, order) = compared(None, true, true);
    assert_eq!(order[trained..], "...p".repeat(TURNS));
    assert_eq!(record.turns.len(), TURNS);
    assert_eq!(record.plain, Some(measured(1e-3, [1e-3; 2])));
}
