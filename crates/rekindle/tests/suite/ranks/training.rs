//! Losses and parameters are those of one device; every rank has the same bits, and so has every run.

use std::{ops::RangeInclusive, sync::Arc};

use burn::{
    module::Module,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::Device,
};
use rekindle::{
    record::{Update, Wanted},
    reduce::{InProcess, Reducer, broadcast_parameters, part},
};
use rekindle_plan::{
    Bytes,
    graph::{GraphPlanError, GraphPlanner, GraphRequest, OperationId, plan_graph, simulate},
};

use super::{Mlp, Silent, Task, Transformer, Wide, parameters, ranks};
use crate::compare::{Trace, assert_same};

const RATE: f64 = 1e-2;

/// Sums of 32-bit values in another order, over twenty steps.
const TOLERANCE: f32 = 1e-5;

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// Adam divides by a gradient's size: with a smaller epsilon, a gradient of zero but for rounding, as that of an attention's
/// key bias, would move its parameter as far as any other.
fn adam() -> ModuleOptimizer {
    AdamConfig::new().with_epsilon(1e-3).init()
}

/// How ranks train.
#[derive(Clone, Copy)]
struct Way<'a> {
    optimizer: fn() -> ModuleOptimizer,
    update: Update,
    /// A plan's operations, some of which run again.
    plan: Option<&'a [OperationId]>,
    /// Samples of each step: not all numbers of ranks divide them, and some ranks get none of the smallest.
    sizes: &'a [usize],
    steps: usize,
}

/// A hand-written burn training loop on one device.
fn alone<T: Task>(model: &T::Model, batches: &[T::Batch], way: Way) -> Trace {
    let mut model = model.valid().train();
    let mut optimizer = (way.optimizer)();
    let mut trace = Trace::new();
    for (step, batch) in (0..way.steps).zip(batches.iter().cycle()) {
        let loss = T::loss(&model, batch.clone());
        let value = loss.clone().into_scalar::<f32>();
        trace.push((format!("loss of step {step}"), vec![value]));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(RATE, model, gradients);
    }
    trace.extend(parameters(&model));
    trace
}

/// The same training, as one rank sees it.
fn shared<T: Task>(rank: InProcess, (model, batches): (&T::Model, &[T::Batch]), way: Way) -> Trace {
    // A rank without samples runs the first one, for nothing.
    let own_batch = |step: usize| {
        let (batch, size) = (
            &batches[step % batches.len()],
            way.sizes[step % batches.len()],
        );
        let samples = part(size, rank.rank(), rank.ranks());
        let share = samples.len() as f64 / size as f64;
        let samples = if samples.is_empty() { 0..1 } else { samples };
        (T::part(batch, samples), share)
    };
    // Only the first rank has what is trained.
    let model = match rank.rank() {
        0 => model.valid().train(),
        _ => T::model(&Device::flex().autodiff()),
    };
    let mut model = broadcast_parameters(&rank, model).expect("broadcast");
    let mut optimizer = (way.optimizer)();
    let (first, _) = own_batch(0);
    let recorded = rekindle::record(&model, &first, T::loss).expect("recorded");
    let recorded = match way.update {
        Update::After => recorded.with_optimizer(&optimizer),
        Update::InBackward => recorded.with_update_in_backward(&optimizer),
    };
    // What other ranks hold is not this one's.
    let mut step = recorded
        .with_meter(Arc::new(Silent))
        .with_reducer(rank.clone())
        .plain()
        .expect("planned");
    if let Some(operations) = way.plan {
        let wanted = Wanted::Operations {
            operations: operations.to_vec(),
            offloaded: Vec::new(),
        };
        step.plan_again(None, wanted).expect("planned");
        assert!(step.plan().repeated > 0, "{}", step.plan());
    }
    let mut trace = Trace::new();
    for number in 0..way.steps {
        let (batch, share) = own_batch(number);
        step.set_share(share);
        let loss = match way.update {
            Update::After => {
                let output = step.run(&model, batch).expect("run");
                model = optimizer.step(RATE, model, output.gradients);
                output.loss
            }
            Update::InBackward => {
                let output = step.run_updating(&mut model, batch, RATE, &mut optimizer);
                output.expect("run").loss
            }
        };
        let loss = loss.into_scalar::<f32>();
        trace.push((format!("loss of step {number}"), vec![loss]));
    }
    trace.extend(parameters(&model));
    trace
}

/// The operations of a plan: segments where a planner of such is given, else for little more than the smallest budget that
/// works.
fn planned<T: Task>(
    model: &T::Model,
    batch: &T::Batch,
    update: Update,
    planner: GraphPlanner,
) -> Vec<OperationId> {
    let recorded = rekindle::record(model, batch, T::loss).expect("recorded");
    let recorded = match update {
        Update::After => recorded.with_optimizer(&sgd()),
        Update::InBackward => recorded.with_update_in_backward(&sgd()),
    };
    let (mut graph, plain) = recorded.plain().expect("planned").graph();
    // Sizes of tensors alone: kernels' scratch varies, and outweighs tensors as small as these.
    graph.fixed_bytes = Bytes::ZERO;
    for operation in &mut graph.operations {
        operation.temp_bytes = Bytes::ZERO;
    }
    let plan = |budget| {
        let within = GraphRequest::within(budget);
        plan_graph(&graph, &GraphRequest { planner, ..within })
    };
    let budget = match (planner, plan(Bytes(1))) {
        (GraphPlanner::Uniform(_), _) => Bytes::MAX,
        (_, Err(GraphPlanError::Infeasible { smallest, .. })) => {
            let more = simulate(&graph, &plain).peak - smallest;
            smallest + Bytes(more.0 / 4)
        }
        (_, other) => panic!("{:?}", other.err()),
    };
    let plan = plan(budget).expect("fits");
    plan.program.operations().to_vec()
}

/// Trains alone and by several ranks.
fn check<T: Task>(
    name: &str,
    counts: RangeInclusive<usize>,
    (model, device): (&T::Model, &Device),
    way: Way<'_>,
) {
    let batches: Vec<_> = way
        .sizes
        .iter()
        .map(|&samples| T::batch(samples, device))
        .collect();
    let expected = alone::<T>(model, &batches, way);
    for count in counts {
        let what = format!(
            "{name}, {count} ranks, {}, planned: {}",
            way.update,
            way.plan.is_some()
        );
        let run = || ranks(count, |rank| shared::<T>(rank, (model, &batches), way));
        let traces = run();
        let largest = assert_same(&what, &expected, &traces[0], TOLERANCE);
        eprintln!("{what}: differs by {largest:e} at most");
        // Once is enough to show that the order of sums does not change.
        let again = if count == 3 { run() } else { Vec::new() };
        for trace in traces[1..].iter().chain(&again) {
            assert_same(&what, &traces[0], trace, 0.0);
        }
    }
}

/// Trains in every way; under plans, steps of these sizes, whose parts have equal lists of operations.
fn check_all<T: Task>(
    name: &str,
    optimizer: fn() -> ModuleOptimizer,
    counts: RangeInclusive<usize>,
    (planner, sizes): (GraphPlanner, &[usize]),
) {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = T::model(&device);
    drop(model.valid());
    let subject = (&model, &device);
    for update in [Update::After, Update::InBackward] {
        let plain = Way {
            optimizer,
            update,
            plan: None,
            sizes: &[12, 12, 7, 12, 3],
            steps: 20,
        };
        check::<T>(name, counts.clone(), subject, plain);
        for count in counts.clone() {
            let batch = T::batch(sizes[0] / count, &device);
            let plan = planned::<T>(&model, &batch, update, planner);
            let planned = Way {
                plan: Some(&plan),
                sizes,
                ..plain
            };
            check::<T>(name, count..=count, subject, planned);
        }
    }
}

#[test]
fn ranks_train_an_mlp_as_one_device_does() {
    own_process!();
    // Too small for a budget to tell.
    let segments = (GraphPlanner::Uniform(Some(2)), [12, 12, 9].as_slice());
    check_all::<Mlp>("sgd", sgd, 2..=4, segments);
    check_all::<Mlp>("adam", adam, 2..=4, segments);
}

#[test]
fn ranks_train_a_transformer_as_one_device_does() {
    own_process!();
    let budget = (GraphPlanner::Graph, [12].as_slice());
    check_all::<Transformer>("sgd", sgd, 3..=3, budget);
    check_all::<Transformer>("adam", adam, 2..=4, budget);
}

#[test]
fn ranks_exchange_many_buckets_as_one_device_does() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = Wide::model(&device);
    drop(model.valid());
    for update in [Update::After, Update::InBackward] {
        let way = Way {
            optimizer: sgd,
            update,
            plan: None,
            sizes: &[7],
            steps: 4,
        };
        check::<Wide>("wide", 3..=3, (&model, &device), way);
    }
}
