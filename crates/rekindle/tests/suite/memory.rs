//! Predicted peaks against measured ones.

use std::sync::Arc;

use crate::{models, random};
use burn::{
    optim::SgdConfig,
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    Executor, Layer, Sequential, StepSeed, TensorTree,
    meter::{HostMeter, Meter},
    profile::{Measured, Profiler},
};
use rekindle_plan::{
    Action, Bytes, PlanRequest, PlannerKind, Schedule, StageId, plan, planner, simulate,
    smallest_peak,
};

/// Share of the measured peak by which a prediction may miss.
const TOLERANCE: f64 = 0.03;

/// The gradient of a convolution's kernel is a convolution with images for kernels: each thread that takes part lays out
/// 9 windows of 24 images of 24 x 24 numbers. The profiler counts one such buffer more wherever it has seen one more, and
/// on a busy machine a step may have fewer threads.
const SCRATCH_BYTES: u64 = 9 * 24 * 24 * 24 * 4;

/// Schedules that no planner would make.
const RANDOM: u64 = 1;

#[test]
fn measured_peaks_are_as_predicted() {
    own_process!();
    let device = Device::flex().autodiff();
    let rows = Tensor::<2>::random([20_000, models::WIDTH], Distribution::Default, &device);
    check(
        "mlp",
        models::mlp(12, &device),
        &rows,
        |output: Tensor<2>| output.powf_scalar(2.0).mean(),
    );
    let images = Tensor::<4>::random([24, 8, 24, 24], Distribution::Default, &device);
    check(
        "conv",
        models::conv_net(4, 8, &device),
        &images,
        |output: Tensor<4>| output.powf_scalar(2.0).mean(),
    );
}

fn check<L, A>(name: &str, model: Sequential<L>, input: &A, loss: impl Fn(A) -> Tensor<1>)
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    let meter = Arc::new(HostMeter::new().expect("installed"));
    let device = Device::flex().autodiff();
    let profiler = Profiler {
        device: &device,
        meter: &*meter,
        optimizer: &SgdConfig::new().init(),
    };
    let (mut measured, model) = profiler.measure(model, input, &loss);
    // No optimizer runs here.
    measured.chain.optimizer = Default::default();
    let fixed = meter.read().in_use_bytes.0 - measured.chain.input_bytes.0;

    let mut report = Vec::new();
    for (what, schedule) in schedules(&measured) {
        let predicted = simulate(&measured.under(&schedule), &schedule)
            .expect("a valid schedule")
            .peak
            .0;
        let traced = Executor::new(schedule.clone())
            .with_meter(meter.clone())
            .traced();
        let executor = Executor::new(schedule.clone());
        let run = || {
            executor
                .step(&model, input.clone(), StepSeed::new(0, 0), &loss)
                .expect("fits")
        };
        drop(run());
        meter.start_interval();
        let output = run();
        let measured = meter.read().peak_in_use_bytes.0;
        drop(output);
        let output = traced
            .step(&model, input.clone(), StepSeed::new(0, 0), &loss)
            .expect("fits");
        let trace = output.trace;
        let phases = output.phases.iter();
        assert_eq!(
            phases.map(|phase| phase.memory.peak_in_use_bytes).max(),
            trace.iter().map(|entry| entry.peak_bytes).max(),
            "{name}: {what}: phases and trace saw one step"
        );
        let actions: Vec<_> = trace.iter().map(|entry| entry.action).collect();
        let scheduled: Vec<_> = schedule
            .actions()
            .iter()
            .copied()
            .filter(|action| *action != Action::Optimize)
            .collect();
        assert_eq!(actions, scheduled, "{name}: {what}");
        // Errors are judged on what the step itself takes, the harder measure.
        let (predicted, measured) = (predicted - fixed, measured - fixed);
        report.push((what, predicted, measured));
    }
    for (what, predicted, measured) in &report {
        let error = (*predicted as f64 - *measured as f64) / *measured as f64;
        println!(
            "{name}: {what}: predicted {predicted}, measured {measured}, {:+.2}%",
            100.0 * error
        );
    }
    for (what, predicted, measured) in report {
        let least = measured as f64 * (1.0 - TOLERANCE) - SCRATCH_BYTES as f64;
        let most = measured as f64 * (1.0 + TOLERANCE) + 1.1 * SCRATCH_BYTES as f64;
        assert!(
            (least..=most).contains(&(predicted as f64)),
            "{name}, {what}: predicted {predicted}, measured {measured}"
        );
    }
}

/// Equal segments; optimal plans at three budgets, which compute the loss apart near the smallest; and all
/// stages recorded by their alternatives, where they have one.
fn schedules(measured: &Measured) -> Vec<(String, Schedule)> {
    let chain = &measured.chain;
    let stages = chain.stages.len();
    let mut schedules: Vec<_> = (1..=stages)
        .filter(|segments| stages.is_multiple_of(*segments))
        .map(|segments| {
            let schedule = planner::uniform(stages, segments).expect("in range");
            (format!("{segments} segments"), schedule)
        })
        .collect();
    let plain = simulate(chain, &planner::none(stages).expect("stages"))
        .expect("a valid schedule")
        .peak
        .0;
    let smallest = smallest_peak(chain).expect("stages").0.0;
    for eighths in [0, 2, 5] {
        let budget = Bytes(smallest + (plain - smallest) / 8 * eighths);
        let request = PlanRequest {
            planner: PlannerKind::Optimal,
            budget: Some(budget),
            ..PlanRequest::default()
        };
        let plan = plan(chain, &request).expect("feasible");
        schedules.push((format!("optimal in {budget}"), plan.schedule));
    }
    let recorded = |stage: usize| Action::ForwardTracked {
        stage: StageId(stage),
        alternative: usize::from(!chain.stages[stage].alternatives.is_empty()),
    };
    let mut actions: Vec<Action> = (0..stages).map(recorded).collect();
    actions.push(Action::Loss);
    actions.extend(
        (0..stages)
            .rev()
            .map(|stage| Action::Backward(StageId(stage))),
    );
    let schedule = Schedule::new(stages, actions).expect("a valid schedule");
    schedules.push(("alternatives".into(), schedule));
    let alternatives: Vec<usize> = chain
        .stages
        .iter()
        .map(|stage| stage.alternatives.len())
        .collect();
    schedules.extend((0..RANDOM).map(|seed| {
        let what = format!("random schedule {seed}");
        (what, random::schedule(&alternatives, seed))
    }));
    schedules
}
