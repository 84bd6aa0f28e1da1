//! A schedule never changes what is computed: loss, gradients, statistics and updated parameters of every schedule
//! equal those of a hand-written burn loop.

use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle::{Layer, Sequential, TensorTree};
use rekindle_plan::{
    Action, Alternative, Bytes, Chain, LossCost, OptimizerCost, PlanRequest, PlannerKind, Schedule,
    Seconds, Stage, plan, planner, simulate, smallest_peak,
};

use crate::{
    compare,
    models::{self, WIDTH},
    random,
};

const BATCH: usize = 4;
const DEPTH: usize = 5;
const CHANNELS: usize = 3;
const VOCAB: usize = 11;

/// Random schedules for each model.
const RANDOM: u64 = 25;

#[test]
fn flex_equals_the_plain_run_bit_for_bit() {
    own_process!();
    every_model(&Device::flex().autodiff(), 0.0, Scope::All);
}

/// Sums on a GPU may be taken in another order when other kernels are chosen, so bits may differ there. Relative to
/// the largest value of each tensor, or to 1.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
const GPU_TOLERANCE: f32 = 2e-4;

/// The device, if it answers.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn opened(id: rekindle_train::device::DeviceId) -> Option<Device> {
    use rekindle::Dtype;
    use rekindle_train::device;

    match device::probe(id) {
        Ok(info) => {
            println!("on {} ({})", info.name, info.detail);
            let opened = device::open(id, Dtype::F32);
            Some(opened.expect("a device that answers").device)
        }
        Err(reason) => {
            println!("skipped: {id}: {reason}");
            None
        }
    }
}

#[cfg(feature = "wgpu")]
#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn wgpu_equals_the_plain_run_within_tolerance() {
    own_process!();
    if let Some(device) = opened(rekindle_train::device::DeviceId::Wgpu(0)) {
        every_model(&device, GPU_TOLERANCE, Scope::Few);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn cuda_equals_the_plain_run_within_tolerance() {
    own_process!();
    if let Some(device) = opened(rekindle_train::device::DeviceId::Cuda(0)) {
        every_model(&device, GPU_TOLERANCE, Scope::Few);
    }
}

/// Which schedules are compared: all, or a few where every new sequence of operations compiles new kernels.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    All,
    #[cfg_attr(not(any(feature = "wgpu", feature = "cuda")), expect(dead_code))]
    Few,
}

fn every_model(device: &Device, tolerance: f32, scope: Scope) {
    device.seed(1);

    let rows = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, device);
    every_schedule(
        "mlp",
        &models::mlp(DEPTH, device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    every_schedule(
        "partly frozen",
        &models::partly_frozen(DEPTH, device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    every_schedule(
        "low-rank adaptation",
        &models::adapted(DEPTH, device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    every_schedule(
        "tied weights",
        &models::tied(device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    let memory = Tensor::<2>::random([3, WIDTH], Distribution::Default, device);
    let picked = Tensor::from_ints([2, 0, 1, 1], device);
    every_schedule(
        "carried tuple",
        &models::carried(DEPTH, device),
        &(rows.clone(), memory, picked),
        device,
        tolerance,
        scope,
        |(state, memory, _)| mean_square(state) + memory.mean(),
    );

    let sequences = Tensor::<3>::random([2, 5, WIDTH], Distribution::Default, device);
    every_schedule(
        "transformer",
        &models::transformer(DEPTH, device),
        &sequences,
        device,
        tolerance,
        scope,
        mean_square,
    );

    let images = Tensor::<4>::random([BATCH, CHANNELS, 6, 6], Distribution::Default, device);
    every_schedule(
        "conv + batch norm + dropout",
        &models::conv_net(DEPTH, CHANNELS, device),
        &images,
        device,
        tolerance,
        scope,
        mean_square,
    );

    let tokens = Tensor::<1, Int>::arange(0..VOCAB as i64, device)
        .narrow(0, 0, 10)
        .reshape([2, 5]);
    every_schedule(
        "embedding + residual",
        &models::token_net(DEPTH, VOCAB, device),
        &(Some(tokens), None),
        device,
        tolerance,
        scope,
        |(_, vectors)| match vectors {
            Some(vectors) => mean_square(vectors),
            None => unreachable!("the last layer gives vectors"),
        },
    );
}

fn mean_square<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    output.powf_scalar(2.0).mean()
}

fn every_schedule<L, A>(
    name: &str,
    model: &Sequential<L>,
    input: &A,
    device: &Device,
    tolerance: f32,
    scope: Scope,
    loss: impl Fn(A) -> Tensor<1>,
) where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    let plain = compare::plain(model, input, device, &loss);
    let wanted = |count: &usize| scope == Scope::All || *count == 2;
    let segmented = (1..=model.len()).filter(wanted).map(|segments| {
        let schedule = planner::uniform(model.len(), segments).expect("segments in range");
        (format!("{name}, {segments} segments"), schedule)
    });
    // Nested recomputes: with few snapshots stages run forward three times and more.
    let nested = (1..=model.len()).filter(wanted).map(|snapshots| {
        let schedule = planner::revolve(model.len(), snapshots).expect("snapshots in range");
        (
            format!("{name}, revolve with {snapshots} snapshots"),
            schedule,
        )
    });
    let balanced = (1..=model.len()).filter(wanted).flat_map(|segments| {
        let schedule = planner::uniform(model.len(), segments).expect("segments in range");
        [1, 2].map(|every| {
            let schedule = recorded_balanced(model, &schedule, every);
            (
                format!("{name}, {segments} segments, every {every}th stage balanced"),
                schedule,
            )
        })
    });
    let planned = plans(model, scope)
        .into_iter()
        .map(|(what, schedule)| (format!("{name}, {what}"), schedule));
    let layers = model.layers().iter();
    let alternatives: Vec<usize> = layers.map(|layer| layer.has_balanced().into()).collect();
    let seeds = if scope == Scope::All { RANDOM } else { 2 };
    let random = (0..seeds).map(|seed| {
        let schedule = random::schedule(&alternatives, seed);
        let actions: Vec<String> = schedule.actions().iter().map(Action::to_string).collect();
        (format!("{name}, {}", actions.join(", ")), schedule)
    });
    let (mut schedules, mut largest) = (0, 0.0_f32);
    for (what, schedule) in segmented
        .chain(nested)
        .chain(balanced)
        .chain(planned)
        .chain(random)
    {
        let trace = compare::scheduled(&what, model, input, &schedule, &loss);
        let difference = compare::assert_same(&what, &plain, &trace, tolerance);
        largest = largest.max(difference);
        schedules += 1;
    }
    println!("{name}: {schedules} schedules, largest difference {largest:e}");
}

/// The same schedule with every `every`th stage that can be recorded by the balanced strategy recorded so.
fn recorded_balanced<L>(model: &Sequential<L>, schedule: &Schedule, every: usize) -> Schedule
where
    L: Layer,
{
    let actions = schedule.actions().iter().map(|&action| match action {
        Action::ForwardTracked { stage, .. } => Action::ForwardTracked {
            stage,
            alternative: usize::from(
                stage.0 % every == 0 && model.layers()[stage.0].has_balanced(),
            ),
        },
        other => other,
    });
    Schedule::new(model.len(), actions.collect()).expect("as valid as before")
}

/// What the planners find for stages of made-up, different sizes at three budgets, alternatives among them.
fn plans<L>(model: &Sequential<L>, scope: Scope) -> Vec<(String, Schedule)>
where
    L: Layer,
{
    let stage = |(index, layer): (usize, &L)| {
        let saved = Bytes(40 + 10 * (index as u64 % 3));
        let balanced = Alternative {
            name: "balanced".into(),
            forward_s: Seconds(1.0),
            backward_s: Seconds(2.3),
            saved_bytes: Bytes(saved.0 / 2),
            ..Alternative::default()
        };
        Stage {
            forward_s: Seconds(1.0),
            backward_s: Seconds(2.0),
            output_bytes: Bytes(10 + index as u64 % 2),
            saved_bytes: saved,
            alternatives: Vec::from_iter(layer.has_balanced().then_some(balanced)),
            ..Stage::default()
        }
    };
    let chain = Chain {
        input_bytes: Bytes(10),
        input_grad: false,
        fixed_bytes: Bytes(0),
        stages: model.layers().iter().enumerate().map(stage).collect(),
        loss: LossCost::default(),
        optimizer: OptimizerCost::default(),
    };
    let plain = simulate(&chain, &planner::none(model.len()).expect("stages")).expect("valid");
    let smallest = smallest_peak(&chain).expect("stages").0;
    let quarters = if scope == Scope::All { 0..3 } else { 1..2 };
    let plan_of = |(planner, quarter): (PlannerKind, u64)| {
        let budget = Bytes(smallest.0 + (plain.peak.0 - smallest.0) * quarter / 4);
        let request = PlanRequest {
            planner,
            budget: Some(budget),
            ..PlanRequest::default()
        };
        let plan = plan(&chain, &request).ok()?;
        Some((format!("{planner} in {budget}"), plan.schedule))
    };
    quarters
        .flat_map(|quarter| {
            [
                (PlannerKind::Optimal, quarter),
                (PlannerKind::Segments, quarter),
            ]
        })
        .filter_map(plan_of)
        .collect()
}
