//! Parameters updated in the backward pass: the values of the ordinary step bit for bit under every plan, gradients that
//! do not wait for one another, peaks as predicted, and what is left of a step that fails.

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::{
        AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig,
        momentum::MomentumConfig,
    },
    tensor::{Device, Distribution, Int, Tensor, activation},
};
use rekindle::{
    Dtype, TensorTree,
    record::{RecordError, Update},
};
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::{
    device::DeviceId,
    model::spec::{LayerSpec, ModelSpec, SampleShape},
    record::RunRecord,
    session::{Job, RunError, ScheduleRequest, run},
    settings::{Accumulate, LossScale, OnNonFinite, OptimizerKind, TrainSettings, UpdateChoice},
};

use crate::{
    jobs::{Steps, classifier, vectors},
    recorded_models::{Gpt, Mlp, Vgg, cross_entropy},
};

const STEPS: u64 = 2;
const RATE: f64 = 1e-2;
/// Room of a budget for what differs from one plan to the next.
const LEEWAY: u64 = 1 << 17;
/// How far a predicted peak may be above the measured one, and how far below.
const PREDICTED: f64 = 0.03;
const NOISE: f64 = 0.002;

/// All float tensors that a module holds.
fn bits<M: Module>(model: &M) -> Vec<Vec<u32>> {
    struct All(Vec<Vec<u32>>);
    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            self.0.push(data.iter::<f32>().map(f32::to_bits).collect());
        }
    }
    let mut all = All(Vec::new());
    model.valid().visit(&mut all);
    all.0
}

fn optimizers() -> [(&'static str, ModuleOptimizer); 4] {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    [
        ("sgd", SgdConfig::new().init()),
        (
            "momentum",
            SgdConfig::new().with_momentum(Some(momentum)).init(),
        ),
        ("adam", AdamConfig::new().init()),
        ("adamw", AdamWConfig::new().init()),
    ]
}

/// Trains with burn's loop, and with steps that update on the way: plain, in segments, and in a smaller budget.
fn check<M, I, F>(name: &str, make: impl Fn(&Device) -> M, batch: impl Fn(&Device) -> I, step: F)
where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1> + Clone,
{
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = make(&device);
    drop(model.valid());
    let batches: Vec<I> = (0..STEPS).map(|_| batch(&device)).collect();
    let expected = optimizers().map(|(kind, mut own)| {
        let mut plain = model.valid().train();
        for (seed, batch) in (0..).zip(&batches) {
            device.seed(seed);
            let loss = step(&plain, batch.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &plain);
            plain = own.step(RATE, plain, gradients);
        }
        assert_ne!(
            bits(&plain),
            bits(&model),
            "{name}, {kind}: nothing was trained"
        );
        bits(&plain)
    });

    let recorded = rekindle::record(&model, &batches[0], step.clone()).expect(name);
    let mut planned = recorded
        .with_update_in_backward(&AdamConfig::new().init())
        .plain()
        .expect("plain");
    let plan = planned.plan();
    let smallest = match planned.set_budget(Bytes(1), Planner::Auto) {
        Err(RecordError::Infeasible { smallest, .. }) => smallest,
        other => panic!("{name}: {other:?}"),
    };
    let more = plan.predicted_peak.0.saturating_sub(smallest.0);
    let tight = Bytes(smallest.0 + more / 10 + LEEWAY);
    let plans = [
        (None, Planner::None),
        (None, Planner::Segments(Some(2))),
        (Some(tight), Planner::Auto),
    ];
    let mut repeated = 0;
    for (budget, planner) in plans {
        match planned.plan_again(budget, planner) {
            Ok(()) => {}
            Err(RecordError::Infeasible { .. }) => continue,
            Err(error) => panic!("{name}, {planner:?}: {error}"),
        }
        for ((kind, mut own), expected) in optimizers().into_iter().zip(&expected) {
            let mut trained = model.valid().train();
            for (seed, batch) in (0..).zip(&batches) {
                device.seed(seed);
                let output = planned
                    .run_updating(&mut trained, batch.clone(), RATE, &mut own)
                    .expect(name);
                assert!(output.gradients.is_empty(), "{name}");
            }
            assert!(bits(&trained) == *expected, "{name}, {kind}, {planner:?}");
        }
        let plan = planned.plan();
        repeated = repeated.max(plan.repeated);
        eprintln!(
            "{name}, {planner:?} within {budget:?} of {}: {} of {} operations again",
            plan.plain_peak, plan.repeated, plan.operations
        );
    }
    assert!(repeated > 0, "{name}: no plan runs anything again");
}

/// The output projection is the embedding.
#[derive(Module, Debug)]
struct Tied {
    words: Embedding,
    hidden: Linear,
}

impl Tied {
    fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(30, 8).init(device),
            hidden: LinearConfig::new(8, 8).init(device),
        }
    }

    fn forward(&self, words: Tensor<2, Int>) -> Tensor<2> {
        let x = self.words.forward(words);
        let x = activation::gelu(self.hidden.forward(x));
        let [batch, length, width] = x.dims();
        let x = x.reshape([batch * length, width]);
        x.matmul(self.words.weight.val().transpose())
    }
}

#[test]
fn updates_on_the_way_are_those_of_the_ordinary_step() {
    own_process!();
    let normal = Distribution::Normal(0.0, 1.0);
    let classes = |count: usize, device: &Device| -> Tensor<1, Int> {
        Tensor::random([count], Distribution::Uniform(0.0, 8.0), device)
    };
    check(
        "mlp",
        Mlp::new,
        |device| {
            let inputs = Tensor::<2>::random([512, 16], normal, device);
            (inputs, classes(512, device))
        },
        |model, (inputs, targets)| cross_entropy(model.forward(inputs), targets),
    );
    check(
        "vgg",
        Vgg::new,
        |device| {
            let inputs = Tensor::<4>::random([4, 3, 32, 32], normal, device);
            (inputs, classes(4, device))
        },
        |model, (inputs, targets)| cross_entropy(model.forward(inputs), targets),
    );
}

#[test]
fn updates_of_words_on_the_way_are_those_of_the_ordinary_step() {
    own_process!();
    let words = |device: &Device, most: f64| -> Tensor<2, Int> {
        Tensor::random([24, 12], Distribution::Uniform(0.0, most), device)
    };
    check(
        "tied",
        Tied::new,
        |device| (words(device, 30.0), words(device, 30.0)),
        |model, (inputs, targets)| {
            let output = model.forward(inputs);
            cross_entropy(output, targets.reshape([288]))
        },
    );
    check(
        "gpt",
        Gpt::new,
        |device| (words(device, 40.0), words(device, 40.0)),
        |model, (inputs, targets)| {
            let output = model.forward(inputs).reshape([288, 40]);
            let loss = CrossEntropyLossConfig::new().init(&output.device());
            loss.forward(output, targets.reshape([288]))
        },
    );
}

type Layers = Vec<Linear>;

fn deep(device: &Device) -> Layers {
    (0..12)
        .map(|_| LinearConfig::new(512, 512).init(device))
        .collect()
}

fn loss(layers: &Layers, input: Tensor<2>) -> Tensor<1> {
    let output = layers
        .iter()
        .fold(input, |x, layer| activation::tanh(layer.forward(x)));
    output.square().mean()
}

#[test]
fn gradients_do_not_wait_for_one_another_and_peaks_are_as_predicted() {
    own_process!();
    let device = Device::flex().autodiff();
    let gradients = 12 * (512 * 512 + 512) * 4_u64;
    let [sgd, _, adam, _] = optimizers();
    for (kind, optimizer) in [sgd, adam] {
        let mut model = deep(&device);
        drop(model.valid());
        let batch = Tensor::<2>::random([64, 512], Distribution::Default, &device);
        let after = rekindle::record(&model, &batch, loss).expect("recorded");
        let after = after.with_optimizer(&optimizer).plain().expect("plain");
        let waits = after.plan().plain_peak;
        drop(after);
        let recorded = rekindle::record(&model, &batch, loss).expect("recorded");
        let mut step = recorded
            .with_update_in_backward(&optimizer)
            .plain()
            .expect("plain");
        let plain = step.plan().plain_peak;
        let saved = waits.0 - plain.0;
        eprintln!("{kind}: {waits} after, {plain} in backward: {saved} of {gradients}");
        assert!(saved as f64 > 0.65 * gradients as f64, "{kind}: {saved}");

        let smallest = match step.set_budget(Bytes(1), Planner::Auto) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("{other:?}"),
        };
        let middle = Bytes((smallest.0 + plain.0) / 2);
        let mut own = optimizer.clone();
        let budgets = [None, Some(middle), Some(smallest + Bytes(1 << 16))];
        for budget in budgets {
            let planner = match budget {
                None => Planner::None,
                Some(_) => Planner::Auto,
            };
            step.plan_again(budget, planner).expect("planned");
            let (mut peak, mut predicted) = (Bytes(0), Bytes(0));
            for _ in 0..3 {
                let output = step
                    .run_updating(&mut model, batch.clone(), RATE, &mut own)
                    .expect("runs");
                peak = peak.max(output.memory.peak_in_use_bytes);
                predicted = predicted.max(output.predicted_peak);
            }
            let error = predicted.0 as f64 / peak.0 as f64 - 1.0;
            eprintln!(
                "{kind}, {budget:?}: {} again, {peak}, predicted {:+.2}%",
                step.plan().repeated,
                error * 100.0
            );
            assert!(budget.is_none_or(|budget| peak <= budget), "{kind}: {peak}");
            assert!(
                (-NOISE..=PREDICTED).contains(&error),
                "{kind}, {budget:?}: predicted {predicted}, measured {peak}"
            );
        }
    }
}

#[test]
fn a_step_that_fails_says_what_it_has_updated() {
    own_process!();
    let device = Device::flex().autodiff();
    let mut model: Layers = (0..3)
        .map(|_| LinearConfig::new(8, 8).init(&device))
        .collect();
    drop(model.valid());
    let optimizer = SgdConfig::new().init();
    let good = Tensor::<2>::ones([4, 8], &device);
    // The first layer's gradient is infinite where its output is zero; the others' are not.
    let root = |layers: &Layers, input: Tensor<2>| {
        let x = layers[0].forward(input).sqrt();
        layers[2].forward(layers[1].forward(x)).square().mean()
    };
    let recorded = rekindle::record(&model, &good, root).expect("recorded");
    let step = recorded
        .with_update_in_backward(&optimizer)
        .plain()
        .expect("plain");
    let mut own = optimizer.clone();

    // A batch that is not finite shows in the first gradient, before any update.
    let before = bits(&model);
    let bad = good.clone() * f32::NAN;
    match step.run_updating(&mut model, bad, RATE, &mut own) {
        Err(RecordError::NotFinite { what }) => assert!(what.contains("gradient"), "{what}"),
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(bits(&model), before);

    // Zero weights make zeros of the first layer's output.
    let weight = model[0].weight.clone();
    model[0].weight = weight.map(|one| one.zeros_like().require_grad());
    model[0].bias = model[0]
        .bias
        .take()
        .map(|bias| bias.map(|one| one.zeros_like().require_grad()));
    let before = bits(&model);
    match step.run_updating(&mut model, good.clone(), RATE, &mut own) {
        Err(RecordError::PartlyUpdated {
            updated,
            of: 6,
            source,
        }) => {
            assert!((1..6).contains(&updated), "{updated}");
            assert!(matches!(*source, RecordError::NotFinite { .. }), "{source}");
        }
        other => panic!("{:?}", other.err()),
    }
    let left = bits(&model);
    let same = left.iter().zip(&before).map(|(one, other)| one == other);
    let same: Vec<bool> = same.collect();
    assert!(same[0] && same[1], "the first layer: {same:?}");
    assert!(same.contains(&false), "{same:?}");

    // Each way to run wants its own recording.
    assert!(matches!(
        step.run(&model, good.clone()).err(),
        Some(RecordError::OtherUpdate {
            update: Update::InBackward
        })
    ));
    let ordinary = rekindle::record(&model, &good, root).expect("recorded");
    let ordinary = ordinary.plain().expect("plain");
    assert!(matches!(
        ordinary
            .run_updating(&mut model, good, RATE, &mut own)
            .err(),
        Some(RecordError::OtherUpdate {
            update: Update::After
        })
    ));
}

const WIDTH: usize = 16;

fn described() -> ModelSpec {
    let linear = LayerSpec::Linear {
        out: WIDTH,
        bias: true,
    };
    let layers = (0..6).flat_map(|_| [linear.clone(), LayerSpec::Tanh]);
    ModelSpec {
        input: SampleShape::float([WIDTH]),
        layers: layers.chain([linear.clone()]).collect(),
    }
}

fn train(settings: &TrainSettings, request: Request) -> (Result<RunRecord, RunError>, Vec<u64>) {
    let model = described();
    let data = vectors(WIDTH, WIDTH, 64);
    let schedule = ScheduleRequest::Plan(request);
    let job = Job::new(&model, &*data.train, settings, schedule);
    let mut steps = Steps::default();
    let ran = run(&job, DeviceId::Cpu, &mut |event| steps.tell(event));
    let losses = steps.0.iter().map(|step| step.loss.to_bits());
    (ran, losses.collect())
}

#[test]
fn trainings_lose_the_same_however_they_update() {
    own_process!();
    let adam = (OptimizerKind::Adam, 0.0, 0.0);
    let momentum = (OptimizerKind::Sgd, 0.9, 1e-3);
    for (optimizer, dtype, loss_scale) in [
        (adam, Dtype::F32, LossScale::Auto),
        (adam, Dtype::Bf16, LossScale::Auto),
        (momentum, Dtype::F32, LossScale::Auto),
        (momentum, Dtype::F16, LossScale::Fixed(64.0)),
    ] {
        let after = TrainSettings {
            dtype,
            loss_scale,
            ..classifier(20, 8, optimizer)
        };
        let in_backward = TrainSettings {
            update: UpdateChoice::InBackward,
            ..after.clone()
        };
        let plain = Request::default();
        let segments = Request {
            planner: Planner::Segments(Some(3)),
            ..plain
        };
        let (_, expected) = train(&after, plain);
        assert_eq!(expected.len(), 20);
        for request in [plain, segments] {
            let (ran, losses) = train(&in_backward, request);
            ran.expect("trains");
            assert_eq!(losses, expected, "{optimizer:?}, {dtype}");
        }
    }
}

#[test]
fn what_needs_all_gradients_is_refused() {
    own_process!();
    let sgd = (OptimizerKind::Sgd, 0.0, 0.0);
    let settings = TrainSettings {
        update: UpdateChoice::InBackward,
        ..classifier(2, 8, sgd)
    };
    let refused = |settings: &TrainSettings| {
        let (ran, steps) = train(settings, Request::default());
        assert!(steps.is_empty(), "{steps:?}");
        match ran.err() {
            Some(RunError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let parts = TrainSettings {
        accumulate: Accumulate::Parts(2),
        ..settings.clone()
    };
    let clipped = TrainSettings {
        clip_norm: Some(1.0),
        ..settings.clone()
    };
    let skips = TrainSettings {
        on_nonfinite: OnNonFinite::Skip,
        ..settings.clone()
    };
    let scaled = TrainSettings {
        dtype: Dtype::F16,
        ..settings.clone()
    };
    for (settings, key) in [
        (parts, "`accumulate = 2`"),
        (clipped, "`clip_norm`"),
        (skips, "`on_nonfinite = \"skip\"`"),
        (scaled, "`loss_scale`"),
    ] {
        let why = refused(&settings);
        assert!(why.contains(key), "{why}");
        assert!(why.ends_with(": it needs `--update after`"), "{why}");
    }
}
