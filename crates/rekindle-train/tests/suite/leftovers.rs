//! A training that leaks is told in which phase.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{GradientsParams, SgdConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    Layer, Sequential,
    meter::{HostMeter, Leftover, Leftovers, Phase, PhaseRecorder},
};
use rekindle_plan::{Bytes, Request};
use rekindle_train::{
    data::{Dataset, Identity, TargetKind, batch::Batch},
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::{MemoryGrowth, RunRecord, StepRecord},
    run_dir::{RunDir, read_record},
    session::{Job, MemoryNow, Observer, ScheduleRequest, run},
    settings::OptimizerSettings,
};

use crate::jobs::{classifier, vectors};

const WIDTH: usize = 64;
const BATCH: usize = 32;

/// Activations, as large as the batch.
const ACTIVATION: u64 = (BATCH * WIDTH * size_of::<f32>()) as u64;

/// What a tensor takes beside its values: its shape, its places, its counters.
const HEADERS: u64 = 1_000;

/// Where a loop keeps a tensor of each step for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leak {
    Nowhere,
    Data,
    Forward,
    Loss,
    Backward,
    Update,
}

/// Where leaks go. Never grows by itself.
static KEPT: Mutex<Vec<Tensor<2>>> = Mutex::new(Vec::new());
/// Whether a forward keeps its output.
static FORWARD_LEAKS: Mutex<bool> = Mutex::new(false);

fn keep(tensor: Tensor<2>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(kept.len() < kept.capacity());
    kept.push(tensor);
}

/// The values without the graph.
fn values(tensor: &Tensor<2>) -> Tensor<2> {
    tensor.clone().inner()
}

#[derive(Module, Debug)]
struct Leaky {
    linear: Linear,
}

impl Layer for Leaky {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let output = self.linear.forward(input).tanh();
        if *FORWARD_LEAKS.lock().unwrap_or_else(PoisonError::into_inner) {
            keep(values(&output));
        }
        output
    }
}

/// Runs a loop, and looks at three of its steps.
fn leftovers(leak: Leak) -> Vec<Leftover> {
    let device = Device::flex().autodiff();
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .reserve(64);
    *FORWARD_LEAKS.lock().unwrap_or_else(PoisonError::into_inner) = leak == Leak::Forward;
    let layer = || Leaky {
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
    };
    let mut model = Sequential::new(vec![layer(), layer()]);
    let mut optimizer = SgdConfig::new().init();
    let meter = Arc::new(HostMeter::new().expect("installed"));
    let mut look = None;
    for step in 0.. {
        // All is there that is made once.
        if step == 5 {
            look = Some(Leftovers::start().expect("installed"));
        }
        let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
        if leak == Leak::Data {
            keep(values(&input));
        }
        let mut phases = PhaseRecorder::start(&*meter);
        let output = model.forward(input);
        phases.end(Phase::Forward);
        let output = match leak {
            Leak::Backward => output,
            _ => output.square(),
        };
        if leak == Leak::Loss {
            keep(values(&output));
        }
        let loss = output.mean();
        phases.end(Phase::Loss);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        drop(loss);
        phases.end(Phase::Backward);
        if leak == Leak::Backward {
            let weight = &model.layers()[0].linear.weight;
            keep(gradients.get::<2>(weight.id).expect("a gradient"));
        }
        let mut update = PhaseRecorder::start(&*meter);
        model = optimizer.step(1e-3, model, gradients);
        if leak == Leak::Update {
            keep(Tensor::ones(
                [BATCH, WIDTH],
                &device.clone().without_autodiff(),
            ));
        }
        update.end(Phase::Optimizer);
        if let Some(left) = look.as_mut().and_then(Leftovers::stepped) {
            return left;
        }
    }
    unreachable!("a look ends")
}

#[test]
fn what_a_loop_leaves_behind_is_told_by_phase() {
    own_process!();
    assert_eq!(leftovers(Leak::Nowhere), []);
    for (leak, phase, tensors) in [
        (Leak::Data, None, 1),
        // In two layers.
        (Leak::Forward, Some(Phase::Forward), 2),
        (Leak::Loss, Some(Phase::Loss), 1),
        (Leak::Update, Some(Phase::Optimizer), 1),
    ] {
        let left = leftovers(leak);
        let bytes = tensors * ACTIVATION;
        let as_leaked = |left: &Leftover| (bytes..bytes + HEADERS).contains(&left.step_bytes.0);
        assert!(
            left.len() == 1 && left[0].phase == phase && as_leaked(&left[0]),
            "{leak:?}: {left:?}"
        );
    }
    // The gradient, and what the loop allocates to hold on to it.
    let left = leftovers(Leak::Backward);
    let weight = (WIDTH * WIDTH * size_of::<f32>()) as u64;
    let beside: u64 = left[1..].iter().map(|left| left.step_bytes.0).sum();
    assert!(
        left[0].phase == Some(Phase::Backward)
            && (weight..weight + HEADERS).contains(&left[0].step_bytes.0)
            && beside < HEADERS,
        "{left:?}"
    );
}

/// A data set, and a program around a run, that keep something of every step.
struct Hoard {
    data: Arc<dyn Dataset>,
    each: usize,
    held: Mutex<Vec<Vec<u8>>>,
}

impl Dataset for Hoard {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn sample_shape(&self) -> SampleShape {
        self.data.sample_shape()
    }

    fn target(&self) -> TargetKind {
        self.data.target()
    }

    fn identity(&self) -> Identity {
        self.data.identity()
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        if self.each > 0 {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.push(vec![1; self.each]);
        }
        self.data.batch(indices)
    }
}

#[derive(Default)]
struct Told(Vec<MemoryGrowth>);

impl Observer for Told {
    fn stepped(&mut self, _step: &StepRecord, _memory: MemoryNow) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn grows(&mut self, growth: &MemoryGrowth) {
        self.0.push(growth.clone());
    }
}

/// A run in which every batch that is read leaves so many bytes.
fn run_leaving(each: usize) -> (RunRecord, Vec<MemoryGrowth>) {
    const STEPS: usize = 11;
    let model = ModelSpec {
        input: SampleShape::float([4]),
        layers: vec![LayerSpec::Linear { out: 3, bias: true }],
    };
    let data = Hoard {
        data: vectors(4, 3, 16).train,
        each,
        held: Mutex::new(Vec::with_capacity(4 * STEPS)),
    };
    let sgd = OptimizerSettings::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
    };
    let settings = classifier(STEPS, 4, sgd);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    let job = Job {
        run_dir: Some(RunDir::New(path.clone())),
        ..Job::new(
            &model,
            &data,
            &settings,
            ScheduleRequest::Plan(Request::default()),
        )
    };
    let mut told = Told::default();
    let record = run(&job, DeviceId::Cpu, &mut told).expect("trains");
    assert_eq!(read_record(&path).expect("a record").growth, record.growth);
    (record, told.0)
}

#[test]
fn a_run_says_that_its_data_is_kept() {
    own_process!();
    let (record, told) = run_leaving(0);
    assert_eq!((record.growth, told.len()), (None, 0));

    const EACH: usize = 100 << 10;
    let (record, told) = run_leaving(EACH);
    let growth = record.growth.expect("growth");
    let left = Leftover {
        phase: None,
        step_bytes: Bytes(EACH as u64),
    };
    // Noticed after the fifth step, and looked for in the three that follow.
    let found = MemoryGrowth {
        last_step: 8,
        step_bytes: Bytes(EACH as u64),
        left: vec![left],
    };
    assert_eq!((&growth, told.last()), (&found, Some(&found)));
    assert_eq!(
        growth.to_string(),
        "up to step 8 each step leaves behind 100.0 KiB outside of phases (data, evaluations, files)"
    );
    let json = serde_json::to_value(&growth).expect("JSON");
    let documented = serde_json::json!({
        "last_step": 8,
        "step_bytes": EACH,
        "left": [{"phase": null, "step_bytes": EACH}],
    });
    assert_eq!(json, documented);
}
