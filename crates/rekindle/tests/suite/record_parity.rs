//! Recorded steps against the plain burn loop, under every plan: loss, auxiliary output, statistics and weights after
//! two Adam steps bit for bit, no peak above its budget, every peak as predicted.

mod levers;
pub mod models;
mod random;
mod state_on_host;

use burn::{
    grad_clipping::GradientClipping,
    module::{Module, ModuleVisitor, Param, ParamGroup},
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::{
        AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig,
        momentum::MomentumConfig,
    },
    tensor::{Device, Distribution, Int, Tensor},
};
use rekindle::{
    TensorTree,
    record::{Link, RecordError, Step, driver::Wanted},
};
use rekindle_plan::{
    Bytes, Graph, Planner, Seconds,
    graph::{OperationId, Program, Rate},
};

use models::{Adapted, Gpt, Mlp, Recurrent, UNet, Vgg, cross_entropy};

/// The first two may both be planned again: another copy of the parameters comes into use.
const STEPS: u64 = 3;
const RATE: f64 = 1e-2;
/// How far a predicted peak may be above the measured one, kernels' scratch apart.
const PREDICTED: f64 = 0.03;
/// How far below: tables of a few hundred bytes that nobody counts.
const NOISE: f64 = 0.002;
/// Plans with operations that run again that each model must give.
const FEWEST_PLANS: usize = 2;
/// Tensors that go to the host where all do.
const FEWEST_MOVED: usize = 5;
/// A link that costs nothing, to a host with room for all.
const LINK: Link = Link {
    to_host: FREE,
    to_device: FREE,
    host_bytes: Bytes(1 << 40),
    staging_bytes: Bytes(8 << 20),
};
const FREE: Rate = Rate {
    latency_s: Seconds(0.0),
    bytes_per_s: f64::INFINITY,
};
/// Budgets between the smallest peak and the plain one, above what is in use anyway.
/// Another copy of the parameters comes into use while a test trains, and plans differ in what they take themselves.
const LEEWAY: Bytes = Bytes(1 << 18);
const BUDGETS: [(f64, Planner); 3] = [
    (0.1, Planner::Auto),
    (0.5, Planner::Optimal),
    (0.6, Planner::Auto),
];

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

fn loss_bits(loss: Tensor<1>) -> u32 {
    loss.into_data()
        .iter::<f32>()
        .next()
        .map_or(0, f32::to_bits)
}

/// Trains with burn alone, and then with recorded steps under several plans.
fn check<M, I, F>(name: &str, make: impl Fn(&Device) -> M, batch: impl Fn(&Device) -> I, step: F)
where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> (Tensor<1>, Tensor<2>) + Clone,
{
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = make(&device);
    drop(model.valid());
    let batches: Vec<I> = (0..STEPS).map(|_| batch(&device)).collect();

    let mut plain = model.valid().train();
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for (seed, batch) in (0..).zip(&batches) {
        device.seed(seed);
        let (loss, output) = step(&plain, batch.clone());
        losses.push((loss_bits(loss.clone()), output.into_data()));
        let gradients = GradientsParams::from_grads(loss.backward(), &plain);
        plain = optimizer.step(RATE, plain, gradients);
    }
    let expected = bits(&plain);
    assert_ne!(expected, bits(&model), "{name}: nothing was trained");

    // What is trained is there before anything is planned, so that plans count it.
    let start = model.valid().train();
    let recorded = || {
        let recorded = rekindle::record(&start, &batches[0], step.clone()).expect(name);
        recorded.with_optimizer(&AdamConfig::new().init())
    };
    let run = |what: &str, budget: Bytes, planned: &Step<M, I, (Tensor<1>, Tensor<2>), F>| {
        let mut trained = model.valid().train();
        let mut optimizer = AdamConfig::new().init();
        let (mut peak, mut predicted) = (Bytes(0), Bytes(0));
        for ((seed, batch), plain) in (0..).zip(&batches).zip(&losses) {
            device.seed(seed);
            let output = planned.run(&trained, batch.clone()).expect(what);
            // A planner in this process takes memory of its own.
            let planned_again = planned.take_growth().is_some();
            if !planned_again && output.memory.peak_in_use_bytes > peak {
                (peak, predicted) = (output.memory.peak_in_use_bytes, output.predicted_peak);
            }
            assert_eq!(
                loss_bits(output.loss),
                plain.0,
                "{name}, {what}: step {seed}"
            );
            assert_eq!(
                output.auxiliary.into_data(),
                plain.1,
                "{name}, {what}: step {seed}"
            );
            trained = optimizer.step(RATE, trained, output.gradients);
        }
        assert_eq!(bits(&trained), expected, "{name}, {what}");
        let plan = planned.plan();
        // The process's meter counts copies on the host too.
        let of_device = predicted;
        let on_host = plan.offload.map(|offload| offload.host_peak_bytes);
        let predicted = predicted + on_host.unwrap_or_default();
        let error = predicted.0 as f64 / peak.0 as f64 - 1.0;
        eprintln!(
            "{name}, {what}: {} of {} operations again, {:?}, {peak} in {budget}, predicted {:+.1}%",
            plan.repeated,
            plan.operations,
            plan.planner,
            error * 100.0
        );
        assert!(peak <= budget, "{name}, {what}: {peak} in {budget}");
        // Not every thread of a kernel holds its scratch at the same time as the others.
        let (graph, _) = planned.graph();
        let scratch = graph.operations.iter().map(|one| one.temp_bytes).max();
        let sure = of_device - scratch.unwrap_or_default();
        assert!(
            error >= -NOISE && sure.0 as f64 <= peak.0 as f64 * (1.0 + PREDICTED),
            "{name}, {what}: predicted {predicted}, measured {peak}"
        );
        plan
    };
    let mut plans = 0;
    let mut planned = recorded().plain().expect("plain");
    let plain_plan = run("plain", Bytes::MAX, &planned);
    assert_eq!(plain_plan.repeated, 0);
    let segments = Planner::Segments(Some(2));
    planned.set_budget(Bytes::MAX, segments).expect("segments");
    plans += usize::from(run("2 segments", Bytes::MAX, &planned).repeated > 0);
    let smallest = match planned.set_budget(Bytes(1), Planner::Auto) {
        Err(RecordError::Infeasible { smallest, .. }) => smallest,
        other => panic!("{name}: {other:?}"),
    };
    for (share, planner) in BUDGETS {
        let more = plain_plan.predicted_peak - smallest;
        let budget = smallest + Bytes((more.0 as f64 * share) as u64) + LEEWAY;
        let what = format!("{planner:?} in {share} of {more}");
        match planned.set_budget(budget, planner) {
            Ok(()) => plans += usize::from(run(&what, budget, &planned).repeated > 0),
            // A model without stages, or a budget below the planner's own smallest.
            Err(RecordError::Infeasible { .. }) => eprintln!("{name}, {what}: no plan"),
            Err(error) => panic!("{name}, {what}: {error}"),
        }
    }
    assert!(plans >= FEWEST_PLANS, "{name}: {plans} plans");
    let mut planned = recorded().with_link(Some(LINK)).plain().expect("plain");
    let (graph, program) = planned.graph();
    let all = by_way_of_the_host(&graph, &program);
    planned.plan_again(None, all).expect("transfers");
    let plan = run("by way of the host", Bytes::MAX, &planned);
    assert_eq!(plan.repeated, 0, "{name}");
    let offload = plan.offload.expect("a link");
    assert!(offload.tensors >= FEWEST_MOVED, "{name}: {plan}");
    assert!(offload.host_peak_bytes > Bytes(0), "{name}: {plan}");
}

/// A step whose tensors all wait on the host between two operations that are not next to each other.
fn by_way_of_the_host(graph: &Graph, program: &Program) -> Wanted {
    let mut last: Vec<Option<usize>> = vec![None; graph.tensors.len()];
    let mut offloaded = Vec::new();
    let first = graph.operations.len() as u32;
    // What is moved after and before each operation.
    let mut moves: Vec<[Vec<OperationId>; 2]> =
        vec![Default::default(); program.operations().len()];
    for (place, &id) in program.operations().iter().enumerate() {
        let operation = graph.operation(id);
        for &input in &operation.inputs {
            let Some(before) = last[input.index()] else {
                continue;
            };
            last[input.index()] = Some(place);
            if place > before + 1 {
                let known = offloaded.iter().position(|one| *one == input);
                let number = known.unwrap_or_else(|| {
                    offloaded.push(input);
                    offloaded.len() - 1
                });
                moves[before][1].push(OperationId(first + 2 * number as u32));
                moves[place][0].push(OperationId(first + 2 * number as u32 + 1));
            }
        }
        let outputs = operation.outputs.iter().filter(|_| !operation.view);
        for output in outputs.filter(|one| graph.tensor(**one).bytes > Bytes(0)) {
            last[output.index()] = Some(place);
        }
    }
    let mut operations = Vec::new();
    for (&id, [before, after]) in program.operations().iter().zip(moves) {
        operations.extend(before);
        operations.push(id);
        operations.extend(after);
    }
    Wanted::Operations {
        operations,
        offloaded,
    }
}

/// Classes from 0 to 7.
fn targets(count: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::random([count], Distribution::Uniform(0.0, 8.0), device)
}

fn with_output(output: Tensor<2>, targets: Tensor<1, Int>) -> (Tensor<1>, Tensor<2>) {
    (cross_entropy(output.clone(), targets), output)
}

/// Selects parameters by path and by id: each group has another optimizer, and one clips its gradients.
fn grouped(model: &Mlp) -> ModuleOptimizer {
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let head = model.head.weight.id;
    AdamConfig::new()
        .init()
        .with_group(
            ParamGroup::from_predicate("hidden."),
            AdamWConfig::new().with_weight_decay(0.1).build(),
            Some(GradientClipping::Norm(1e-3)),
        )
        .with_group(ParamGroup::from_ids(vec![head]), momentum.build(), None)
}

#[test]
fn groups_of_parameters_are_updated_as_by_the_plain_loop() {
    own_process!();
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = Mlp::new(&device);
    drop(model.valid());
    let normal = Distribution::Normal(0.0, 1.0);
    let batch = (
        Tensor::<2>::random([64, 16], normal, &device),
        targets(64, &device),
    );
    let loss = |model: &Mlp, (inputs, targets)| cross_entropy(model.forward(inputs), targets);
    let trained_by = |update: &mut dyn FnMut(Mlp) -> Mlp| {
        let steps = (0..STEPS).fold(model.valid().train(), |model, seed| {
            device.seed(seed);
            update(model)
        });
        bits(&steps)
    };
    let by_burn = |mut own: ModuleOptimizer| {
        trained_by(&mut |model| {
            let gradients = loss(&model, batch.clone()).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            own.step(RATE, model, gradients)
        })
    };
    let expected = by_burn(grouped(&model));
    assert_ne!(expected, by_burn(AdamConfig::new().init()));

    let mut own = grouped(&model);
    let recorded = || rekindle::record(&model, &batch, loss).expect("recorded");
    let step = recorded().with_optimizer(&own).plain().expect("plain");
    let after = trained_by(&mut |model| {
        let output = step.run(&model, batch.clone()).expect("runs");
        own.step(RATE, model, output.gradients)
    });
    assert!(after == expected, "updated after the step");
    let mut own = grouped(&model);
    let step = recorded().with_update_in_backward(&own).plain();
    let step = step.expect("plain");
    let in_backward = trained_by(&mut |mut model| {
        let output = step.run_updating(&mut model, batch.clone(), RATE, &mut own);
        output.expect("runs");
        model
    });
    assert!(in_backward == expected, "updated in the backward pass");
}

#[test]
fn each_group_of_parameters_is_counted_with_its_own_state() {
    own_process!();
    const WIDTH: usize = 256;
    /// Tables and headers of a parameter's state, at most: less than any weight.
    const HEADERS: u64 = 4 << 10;
    let device = Device::flex().autodiff();
    let layers = (0..3).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device));
    let model: Vec<Linear> = layers.collect();
    let batch = Tensor::<2>::ones([4, WIDTH], &device);
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x));
        output.square().mean()
    };
    let (weight, bias) = ((WIDTH * WIDTH * 4) as u64, (WIDTH * 4) as u64);
    let by_path = ParamGroup::from_predicate("1.");
    let by_id = ParamGroup::from_ids(vec![model[2].weight.id]);
    // Adam keeps two moments of each of these parameters.
    for (group, moments) in [(by_path, 2 * (weight + bias)), (by_id, 2 * weight)] {
        let optimizer = SgdConfig::new()
            .init()
            .with_group(group, AdamConfig::new().build(), None);
        for in_backward in [false, true] {
            let recorded = rekindle::record(&model, &batch, loss).expect("recorded");
            let recorded = match in_backward {
                true => recorded.with_update_in_backward(&optimizer),
                false => recorded.with_optimizer(&optimizer),
            };
            let step = recorded.plain().expect("plain");
            let state = step.optimizer_cost().state_bytes.0;
            assert!(
                (moments..=moments + 6 * HEADERS).contains(&state),
                "{state} for {moments}, update in backward {in_backward}"
            );
        }
    }
}

#[test]
fn recorded_steps_on_images_are_the_plain_loops() {
    own_process!();
    let normal = Distribution::Normal(0.0, 1.0);
    check(
        "vgg",
        Vgg::new,
        |device| {
            (
                Tensor::<4>::random([48, 3, 32, 32], normal, device),
                targets(48, device),
            )
        },
        |model, (inputs, targets)| with_output(model.forward(inputs), targets),
    );
    check(
        "u-net",
        UNet::new,
        |device| {
            (
                Tensor::<4>::random([48, 3, 32, 32], normal, device),
                targets(48, device),
            )
        },
        |model, (inputs, targets)| {
            // Two losses: one on the output, one on the weights.
            let (loss, output) = with_output(model.forward(inputs), targets);
            (loss + output.clone().powf_scalar(2.0).mean() * 0.1, output)
        },
    );
}

#[test]
fn recorded_steps_are_the_plain_loops() {
    own_process!();
    let normal = Distribution::Normal(0.0, 1.0);
    check(
        "mlp",
        Mlp::new,
        |device| {
            (
                Tensor::<2>::random([4096, 16], normal, device),
                targets(4096, device),
            )
        },
        |model, (inputs, targets)| with_output(model.forward(inputs), targets),
    );
    check(
        "gpt",
        Gpt::new,
        |device| {
            let range = Distribution::Uniform(0.0, 40.0);
            let tokens = Tensor::<2, Int>::random([192, 12], range, device);
            (tokens, Tensor::<2, Int>::random([192, 12], range, device))
        },
        |model, (tokens, targets)| {
            let output = model.forward(tokens).flatten::<2>(0, 1);
            let loss = CrossEntropyLossConfig::new().init(&output.device());
            let loss = loss.forward(output.clone(), targets.flatten(0, 1));
            (loss, output)
        },
    );
    check(
        "recurrent",
        Recurrent::new,
        |device| {
            (
                Tensor::<3>::random([3072, 3, 6], normal, device),
                targets(3072, device),
            )
        },
        |model, (inputs, targets)| with_output(model.forward(inputs), targets),
    );
    check(
        "adapted",
        Adapted::new,
        |device| {
            (
                Tensor::<2>::random([4096, 24], normal, device),
                targets(4096, device),
            )
        },
        |model, (inputs, targets)| with_output(model.forward(inputs), targets),
    );
}
