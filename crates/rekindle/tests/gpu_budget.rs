//! On a GPU a budget bounds what the pools reserve. A process of its own: the pools are set up at the first touch.

#![cfg(any(feature = "wgpu", feature = "cuda"))]
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use rekindle::{
    Dtype,
    data::{
        open,
        settings::{DataSettings, Source, SyntheticTarget},
    },
    device::{DeviceId, DeviceInfo, probe},
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    train::{
        record::RunRecord,
        session::{Job, RunError, ScheduleRequest, run},
        settings::{LearningRate, LossKind, OnNonFinite, OptimizerSettings, TrainSettings},
    },
};
use rekindle_plan::{Bytes, PlanError, PlanRequest, PlannerKind};

const WIDTH: usize = 256;
const DEPTH: usize = 12;

/// Share of the measured bytes by which the predicted peak in use may miss.
const TOLERANCE: f64 = 0.05;

#[test]
fn what_the_pools_reserve_stays_within_the_budget() {
    let devices = [DeviceId::Cuda(0), DeviceId::Wgpu(0)];
    let Some(device) = devices.into_iter().find_map(|device| probe(device).ok()) else {
        println!("skipped: no GPU answers");
        return;
    };
    println!("on {} ({})", device.device, device.name);
    // Too little, so that the error names the least that will do.
    let error = train(&device, Bytes(1)).unwrap_err();
    let RunError::Plan(PlanError::Infeasible { smallest, .. }) = *error else {
        panic!("one byte is too little, but {error}");
    };
    for budget in [smallest, Bytes(smallest.0 / 4 * 5)] {
        let record = train(&device, budget).unwrap();
        let pools = record.pools.unwrap();
        println!(
            "budget {budget}: predicted {}, reserved {}, in use {} predicted, {} seen, {} trims",
            record.predicted_peak_bytes,
            record.measured_peak_bytes,
            record.in_use.predicted_bytes,
            record.in_use.measured_bytes,
            pools.trims
        );
        assert!(record.measured_peak_bytes <= budget);
        let (predicted, measured) = (record.in_use.predicted_bytes, record.in_use.measured_bytes);
        let error = (predicted.0 as f64 - measured.0 as f64) / measured.0 as f64;
        assert!(error.abs() <= TOLERANCE, "{predicted}, {measured}");
    }
}

fn train(device: &DeviceInfo, budget: Bytes) -> Result<RunRecord, Box<RunError>> {
    let mut layers = Vec::new();
    for _ in 0..DEPTH {
        layers.push(LayerSpec::Linear {
            out: WIDTH,
            bias: true,
        });
        layers.push(LayerSpec::Tanh);
    }
    let model = ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers,
    };
    let data = DataSettings {
        source: Source::Synthetic {
            shape: vec![WIDTH],
            vocab: None,
            target: SyntheticTarget::Regression { values: WIDTH },
            samples: 1024,
            seed: 1,
        },
        eval_split: 0.0,
    };
    let data = open(&data, 1).unwrap();
    let settings = TrainSettings {
        steps: 3,
        batch: 512,
        accumulate: 1,
        seed: 1,
        dtype: Dtype::F32,
        loss: LossKind::MeanSquaredError,
        optimizer: OptimizerSettings::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
        learning_rate: LearningRate::Constant { rate: 1e-2 },
        clip: None,
        eval_every: None,
        on_nonfinite: OnNonFinite::Stop,
    };
    let request = ScheduleRequest::Plan(PlanRequest {
        planner: PlannerKind::Auto,
        budget: Some(budget),
        ..PlanRequest::default()
    });
    let job = Job::new(&model, &*data.train, &settings, request).on(device);
    run(&job, device.device, &mut ()).map_err(Box::new)
}
