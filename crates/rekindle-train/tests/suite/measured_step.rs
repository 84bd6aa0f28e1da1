//! A measured step from its file gives the plans that it gives where it was measured.

use rekindle::meter::{HostMeter, Meter};
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    session::{Infeasible, Job, MeasuredStep, Planned, RunError, ScheduleRequest, measure},
    settings::OptimizerKind,
};

use crate::jobs::{classifier, processor, vectors};

const WIDTH: usize = 128;

/// A plan takes memory while it is made, which counts in the process that makes it.
const OF_PLANS: f64 = 0.02;

/// By as much a plan's time may change with some kilobytes of its budget: operations are kept or not.
const OF_A_BUDGET: f64 = 0.1;

/// Where a step was measured, the smallest budget is one that was tried: each time the plan's own memory did not fit, a
/// 64th more, three times at most, and a 256th at the end.
const TRIED: f64 = 3.0 / 64.0 + 1.0 / 256.0 + OF_PLANS;

fn model() -> ModelSpec {
    let linear = LayerSpec::Linear {
        out: WIDTH,
        bias: true,
    };
    let norm = LayerSpec::BatchNorm;
    let block = [linear.clone(), norm, LayerSpec::Gelu];
    let layers = block.iter().cloned().cycle().take(12).chain([linear]);
    ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers: layers.collect(),
    }
}

fn request(planner: Planner, budget: Option<Bytes>) -> Request {
    Request::of(planner, budget)
}

fn close(a: Bytes, b: Bytes, tolerance: f64) -> bool {
    (a.0 as f64 / b.0 as f64 - 1.0).abs() <= tolerance
}

#[test]
fn steps_plan_from_their_file_as_where_they_were_measured() {
    own_process!();
    let model = model();
    let data = vectors(WIDTH, WIDTH, 4_000);
    let settings = classifier(1, 4_000, (OptimizerKind::Sgd, 0.9, 0.0));
    let plain = ScheduleRequest::Plan(Request::default());
    // The leanest program is measured: what measuring takes counts where it was done.
    let full = processor(Some(Bytes(1)));
    let job = Job {
        device: Some(&full),
        ..Job::new(&model, &*data.train, &settings, plain)
    };
    let mut subject = measure(&job, DeviceId::Cpu, &mut |_| ()).expect("measured");
    let file = subject.measured_step(&job).to_json().expect("valid");
    let from_file = MeasuredStep::from_json(&file).expect("what was written");

    let mut here = |request| {
        let planned = subject.plan(&job, &ScheduleRequest::Plan(request));
        planned.map_err(Box::new)
    };
    let same = |here: &Planned, there: &Planned| {
        let [plain, from_file] = [here, there].map(|planned| &planned.summary);
        assert!(close(plain.plain_peak, from_file.plain_peak, OF_PLANS));
        // Updates in the backward pass are summed with its operations, others after them: a last bit may differ.
        let times = plain.plain_time.0 / from_file.plain_time.0;
        assert!((times - 1.0).abs() <= 4.0 * f64::EPSILON, "{times}");
        let names = |planned: &Planned| {
            let stages = planned.staged.chain.stages.iter();
            stages.map(|stage| stage.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(here), names(there));
    };
    let plain = here(request(Planner::None, None)).expect("no budget");
    same(
        &plain,
        &from_file
            .plan(&request(Planner::None, None))
            .expect("no budget"),
    );
    let mut recomputing = 0;
    for percent in [20, 60, 80, 110] {
        let budget = Bytes(plain.summary.predicted_peak.0 * percent / 100);
        for planner in [Planner::Auto, Planner::Segments(None)] {
            let there = from_file
                .plan(&request(planner, Some(budget)))
                .map_err(Box::new);
            match (here(request(planner, Some(budget))), there) {
                (Ok(here), Ok(there)) => {
                    same(&here, &there);
                    let (here, there) = (here.summary, there.summary);
                    assert!(here.predicted_peak.max(there.predicted_peak) <= budget);
                    let slower = here.predicted_time.0 / there.predicted_time.0;
                    assert!((slower - 1.0).abs() <= OF_A_BUDGET, "{percent}%: {slower}");
                    recomputing += usize::from(there.repeated > 0);
                }
                (Err(here), Err(there)) => {
                    let smallest = |error: &RunError| match error {
                        RunError::Infeasible(Infeasible { smallest, .. }) => *smallest,
                        error => panic!("{error}"),
                    };
                    let (a, b) = (smallest(&here), smallest(&there));
                    // Where the step was measured, what measuring took is the least.
                    let until_now = HostMeter::new().expect("installed").lifetime_peak();
                    let b = b.max(until_now.in_use_bytes);
                    assert!(close(a, b, TRIED), "{a} and {b}");
                }
                (here, there) => panic!(
                    "within {percent}%: {:?} here, {:?} from the file",
                    here.map(|plan| plan.summary),
                    there.map(|plan| plan.summary)
                ),
            }
        }
    }
    assert!(recomputing > 1, "{recomputing}");
}

#[test]
fn a_profile_of_another_form_is_refused() {
    let text = r#"{"format": "rekindle-chain/1", "input_bytes": 1,
        "stages": [{"name": "a", "forward_s": 1, "backward_s": 1, "output_bytes": 1, "saved_bytes": 1,
                    "forward_temp_bytes": 0, "backward_temp_bytes": 0}],
        "loss": {"forward_s": 0, "backward_s": 0, "forward_temp_bytes": 0, "backward_temp_bytes": 0},
        "profile": {"micro_batches": 1,
                    "way": {"modules": {"holds": [], "backward_call_s": 0}}}}"#;
    let error = MeasuredStep::from_json(text).expect_err("no recorded step");
    assert!(error.to_string().contains("unknown field `way`"), "{error}");
}

#[test]
fn a_refused_budget_names_whose_plans_do_not_fit_it() {
    let text = r#"{"format": "rekindle-chain/1", "input_bytes": 3,
        "stages": [{"name": "a", "forward_s": 7, "backward_s": 14, "output_bytes": 5, "saved_bytes": 11,
                    "forward_temp_bytes": 2, "backward_temp_bytes": 3}],
        "loss": {"forward_s": 0, "backward_s": 0, "forward_temp_bytes": 0, "backward_temp_bytes": 1}}"#;
    let step = MeasuredStep::from_json(text).expect("a chain");
    // x_0 and X_1, and in the backward y_1 and 3 more: 3 + 11 + 5 + 3.
    let rest = "0 B (0 bytes): the smallest workable budget is 22 B (22 bytes)";
    for (planner, start) in [
        (Planner::None, "the plain run does not fit"),
        (Planner::Auto, "no plan fits"),
        (Planner::Optimal, "no plan of `optimal` fits"),
    ] {
        let refused = step.plan(&request(planner, Some(Bytes(0)))).err();
        let said = refused.expect("refused").to_string();
        assert_eq!(said, format!("{start} {rest}"));
    }
}
