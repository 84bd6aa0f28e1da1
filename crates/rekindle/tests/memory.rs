//! Predicted peaks against measured ones, in a process of its own: one test, so that nothing else allocates.

#[path = "parity/models.rs"]
#[expect(
    dead_code,
    reason = "shared with the parity tests, which use all of it"
)]
mod models;

use std::sync::Arc;

use burn::{
    backend::{Autodiff, Flex},
    module::AutodiffModule,
    tensor::{Distribution, Tensor},
};
use rekindle::{
    Activation, Executor, Layer, Sequential, StepSeed,
    meter::{HostMeter, Meter},
    profile::{Profiler, StageLabel},
    train::settings::OptimizerSettings,
};
use rekindle_plan::{planner, simulate};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

type B = Autodiff<Flex>;

/// Share of the measured peak by which a prediction may miss.
const TOLERANCE: f64 = 0.03;

/// What a step may take beyond the prediction: convolutions hold one scratch buffer for each thread that happens to be
/// busy (147 KiB here), and the profiler need not have met the unluckiest moment.
const SCRATCH_BYTES: u64 = 2 * 147 * 1024;

const SGD: OptimizerSettings = OptimizerSettings::Sgd {
    momentum: 0.0,
    weight_decay: 0.0,
};

#[test]
fn measured_peaks_are_as_predicted() {
    let device = Default::default();
    let rows = Tensor::<B, 2>::random([40_000, models::WIDTH], Distribution::Default, &device);
    check(
        "mlp",
        &models::mlp(12, &device),
        &rows,
        |output: Tensor<B, 2>| output.powf_scalar(2.0).mean(),
    );
    let images = Tensor::<B, 4>::random([48, 8, 24, 24], Distribution::Default, &device);
    check(
        "conv",
        &models::conv_net(6, 8, &device),
        &images,
        |output: Tensor<B, 4>| output.powf_scalar(2.0).mean(),
    );
}

fn check<L, A>(name: &str, model: &Sequential<L>, input: &A, loss: impl Fn(A) -> Tensor<B, 1>)
where
    A: Activation<B>,
    L: Layer<B, Input = A, Output = A> + AutodiffModule<B>,
{
    let meter = Arc::new(HostMeter::new().expect("installed"));
    let device = Default::default();
    let labels: Vec<_> = (0..model.len())
        .map(|stage| StageLabel {
            name: format!("block {stage}"),
            key: if stage == 0 {
                "first".into()
            } else {
                "other".into()
            },
        })
        .collect();
    let profiler = Profiler::<B> {
        device: &device,
        meter: &*meter,
        optimizer: SGD,
        clip: None,
    };
    let mut measured = profiler.chain(model, &labels, input, &loss, |_| {});
    // No optimizer runs here.
    let chain = &mut measured.chain;
    chain.optimizer = Default::default();
    let fixed = meter.read().in_use_bytes.0 - chain.input_bytes.0;
    chain.fixed_bytes.0 += fixed;

    let mut report = Vec::new();
    for segments in 1..=model.len() {
        let schedule = planner::uniform(model.len(), segments).expect("in range");
        let predicted = simulate(&measured.under(&schedule), &schedule)
            .expect("a valid schedule")
            .peak
            .0;
        let executor = Executor::new(schedule);
        let run = || {
            executor
                .step(model, input.clone(), StepSeed::new(0, 0), &loss)
                .expect("fits")
        };
        drop(run());
        meter.start_interval();
        let output = run();
        let measured = meter.read().peak_in_use_bytes.0;
        drop(output);
        // Errors are judged on what the step itself takes, the harder measure.
        let (predicted, measured) = (predicted - fixed, measured - fixed);
        report.push((segments, predicted, measured));
    }
    for (segments, predicted, measured) in &report {
        let error = (*predicted as f64 - *measured as f64) / *measured as f64;
        println!(
            "{name}: {segments} segments: predicted {predicted}, measured {measured}, {:+.2}%",
            100.0 * error
        );
    }
    for (segments, predicted, measured) in report {
        let error = (predicted as f64 - measured as f64) / measured as f64;
        assert!(
            error.abs() < TOLERANCE,
            "{name}, {segments} segments: predicted {predicted}, measured {measured}"
        );
        assert!(
            measured <= predicted + SCRATCH_BYTES,
            "{name}, {segments} segments: predicted {predicted}, measured {measured}"
        );
    }
}
