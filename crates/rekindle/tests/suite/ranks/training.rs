//! Losses and parameters are those of one device; every rank has the same bits, and so has every run.

use std::sync::Arc;

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Tensor},
};
use rekindle::{
    Sharded,
    record::{
        Optimizer, Update,
        driver::{Shards, Wanted},
    },
    reduce::{ReduceError, Reducer, broadcast_parameters, part},
};
use rekindle_plan::{
    Bytes, Planner, Request,
    graph::{OperationId, PlanError, plan_graph, simulate},
};

use super::{Mlp, Normed, Silent, Task, Transformer, Wide, ranks};
use crate::compare::{Trace, assert_same, floats, gradients_of, state_of};

const RATE: f64 = 1e-2;

/// Steps of each training: every size once, and the first again.
const STEPS: usize = 6;

/// Sums of 32-bit values in another order, over so many steps.
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
    /// Whether ranks share out the optimizer's state.
    sharded: bool,
    update: Update,
    /// A plan's operations, some of which run again.
    plan: Option<&'a [OperationId]>,
    /// Samples of each step: not all numbers of ranks divide them, and some ranks get none of the smallest.
    sizes: &'a [usize],
    steps: usize,
}

/// An optimizer whose state is whole on every rank, or sharded.
pub(super) struct Either {
    pub(super) whole: ModuleOptimizer,
    pub(super) sharded: Option<Sharded<ModuleOptimizer>>,
}

impl Optimizer for Either {
    fn for_trial(&self) -> Self {
        Self {
            whole: self.whole.clone(),
            sharded: self.sharded.as_ref().map(Sharded::for_trial),
        }
    }

    fn step<M: Module>(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        match &mut self.sharded {
            None => self.whole.step(rate, model, gradients),
            Some(sharded) => Optimizer::step(sharded, rate, model, gradients),
        }
    }

    fn shards(&self) -> Option<&Shards> {
        self.sharded.as_ref()?.shards()
    }
}

/// A hand-written burn training loop on one device.
fn alone<T: Task>(model: &T::Model, batches: &[T::Batch], way: Way) -> Trace {
    let mut model = model.valid().train();
    let mut optimizer = (way.optimizer)();
    let mut trace = Trace::new();
    for (step, batch) in (0..way.steps).zip(batches.iter().cycle()) {
        let loss = T::loss_alone(&model, batch.clone());
        let value = loss.clone().into_scalar::<f32>();
        trace.push((format!("loss of step {step}"), vec![value]));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(RATE, model, gradients);
    }
    // The last update of running statistics waits.
    trace.extend(state_of(&model));
    trace
}

/// The same training, as one rank sees it.
fn shared<T: Task>(rank: Reducer, (model, batches): (&T::Model, &[T::Batch]), way: Way) -> Trace {
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
    let sharded = || Sharded::new((way.optimizer)(), &model, rank.clone());
    let mut optimizer = Either {
        whole: (way.optimizer)(),
        sharded: way.sharded.then(sharded),
    };
    let (first, _) = own_batch(0);
    let recorded = rekindle::record(&model, &first, T::loss).expect("recorded");
    let recorded = match way.update {
        Update::After => recorded.with_optimizer(&optimizer),
        Update::InBackward => recorded.with_update_in_backward(&optimizer),
    };
    // What other ranks hold is not this one's.
    let mut step = recorded
        .with_meter(Arc::new(Silent(())))
        .with_reducer(rank.clone())
        .plain()
        .expect("planned");
    // Plans of ranks may differ: the last one's is plain.
    if let Some(operations) = way.plan.filter(|_| rank.rank() + 1 < rank.ranks()) {
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
                model = match &mut optimizer.sharded {
                    None => optimizer.whole.step(RATE, model, output.gradients),
                    Some(sharded) => sharded.step(RATE, model, output.gradients).expect("shared"),
                };
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
    trace.extend(state_of(&model));
    trace
}

/// The operations of a plan: segments where a planner of such is given, else for little more than the smallest budget that
/// works.
fn planned<T: Task>(
    model: &T::Model,
    batch: &T::Batch,
    update: Update,
    planner: Planner,
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
        let within = Request::within(budget);
        plan_graph(&graph, &Request { planner, ..within })
    };
    let budget = match (planner, plan(Bytes(1))) {
        (Planner::Segments(_), _) => Bytes::MAX,
        (_, Err(PlanError::Infeasible { leanest, .. })) => {
            let smallest = leanest.simulated.peak;
            let more = simulate(&graph, &plain).peak - smallest;
            smallest + Bytes(more.0 / 4)
        }
        (_, other) => panic!("{:?}", other.err()),
    };
    let plan = plan(budget).expect("fits");
    plan.program.operations().to_vec()
}

/// Trains alone and by several ranks.
fn check<T: Task>(name: &str, count: usize, (model, device): (&T::Model, &Device), way: Way<'_>) {
    let batches: Vec<_> = way
        .sizes
        .iter()
        .map(|&samples| T::batch(samples, device))
        .collect();
    let expected = alone::<T>(model, &batches, way);
    let what = format!(
        "{name}, {count} ranks, {}, planned: {}",
        way.update,
        way.plan.is_some()
    );
    let run = || ranks(count, |rank| shared::<T>(rank, (model, &batches), way));
    let traces = run();
    let largest = assert_same(&what, &expected, &traces[0], TOLERANCE);
    eprintln!("{what}: differs by {largest:e} at most");
    // The order of sums is that of ranks, every time.
    let again = match way.plan {
        None if count > 2 => run(),
        _ => Vec::new(),
    };
    for trace in traces[1..].iter().chain(&again) {
        assert_same(&what, &traces[0], trace, 0.0);
    }
}

/// Trains in every way; under plans, steps of these sizes, whose parts have equal lists of operations.
fn check_all<T: Task>(
    name: &str,
    optimizer: fn() -> ModuleOptimizer,
    count: usize,
    (planner, sizes): (Planner, &[usize]),
) {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = T::model(&device);
    drop(model.valid());
    let subject = (&model, &device);
    for update in [Update::After, Update::InBackward] {
        let plain = Way {
            optimizer,
            sharded: false,
            update,
            plan: None,
            sizes: &[12, 12, 7, 12, 3],
            steps: STEPS,
        };
        check::<T>(name, count, subject, plain);
        let batch = T::batch(sizes[0] / count, &device);
        let plan = planned::<T>(&model, &batch, update, planner);
        let planned = Way {
            plan: Some(&plan),
            sizes,
            ..plain
        };
        check::<T>(name, count, subject, planned);
    }
}

#[test]
fn ranks_train_an_mlp_as_one_device_does() {
    own_process!();
    // Too small for a budget to tell.
    let segments = (Planner::Segments(Some(2)), [12, 12, 9].as_slice());
    check_all::<Mlp>("sgd", sgd, 4, segments);
    check_all::<Mlp>("adam", adam, 3, segments);
}

#[test]
fn ranks_train_a_transformer_as_one_device_does() {
    own_process!();
    let budget = (Planner::Auto, [12].as_slice());
    check_all::<Transformer>("adam", adam, 3, budget);
}

#[test]
fn ranks_normalise_as_one_device_does() {
    own_process!();
    let device = Device::flex().autodiff();
    device.seed(3);
    let model = Normed::model(&device);
    drop(model.valid());
    let after = Way {
        optimizer: sgd,
        sharded: false,
        update: Update::After,
        plan: None,
        sizes: &[12, 7, 3],
        steps: STEPS,
    };
    let in_backward = Way {
        update: Update::InBackward,
        ..after
    };
    for count in 2..=3 {
        for way in [after, in_backward] {
            check::<Normed>("batch norm", count, (&model, &device), way);
        }
        let batch = Normed::batch(12 / count, &device);
        let plan = planned::<Normed>(&model, &batch, Update::After, Planner::Auto);
        let way = Way {
            plan: Some(&plan),
            sizes: &[12],
            ..after
        };
        check::<Normed>("batch norm", count, (&model, &device), way);
    }
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
            sharded: false,
            update,
            plan: None,
            sizes: &[7],
            steps: 2,
        };
        check::<Wide>("wide", 3, (&model, &device), way);
    }
}

/// Trains with the optimizer's state whole on every rank, and sharded: with each of these updates, plain or under a plan.
fn check_sharded<T: Task>(
    count: usize,
    planner: Planner,
    (samples, steps): (usize, usize),
    ways: &[(Update, bool)],
) {
    let device = Device::flex().autodiff();
    device.seed(2);
    let model = T::model(&device);
    drop(model.valid());
    let batch = [T::batch(samples, &device)];
    for &(update, planned) in ways {
        let own = T::part(&batch[0], part(samples, 0, count));
        let operations = planned.then(|| self::planned::<T>(&model, &own, update, planner));
        let way = Way {
            optimizer: adam,
            sharded: false,
            update,
            plan: operations.as_deref(),
            sizes: &[samples],
            steps,
        };
        let run = |sharded| {
            let way = Way { sharded, ..way };
            ranks(count, |rank| shared::<T>(rank, (&model, &batch), way))
        };
        for (whole, sharded) in run(false).iter().zip(run(true)) {
            let what = format!("sharded, {count} ranks, {update}, planned: {planned}");
            assert_same(&what, whole, &sharded, 0.0);
        }
    }
}

#[test]
fn a_sharded_state_gives_the_bits_of_a_whole_one() {
    own_process!();
    let segments = Planner::Segments(Some(2));
    let pairs = [(Update::After, true), (Update::InBackward, false)];
    let others = [(Update::After, false), (Update::InBackward, true)];
    check_sharded::<Mlp>(3, segments, (12, STEPS), &[pairs, others].concat());
    check_sharded::<Transformer>(3, Planner::Auto, (12, 2), &pairs);
    // More ranks than parameters, and many buckets.
    check_sharded::<Wide>(5, segments, (5, 1), &others);
}

#[test]
fn a_rank_that_does_not_share_its_updates_is_named() {
    let device = Device::flex().autodiff();
    let model = Mlp::model(&device);
    drop(model.valid());
    let told = ranks(3, |rank| {
        let model = model.valid().train();
        let loss = Mlp::loss(&model, Mlp::batch(2, &Device::flex().autodiff()));
        let mut optimizer = Sharded::new(adam(), &model, rank.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        match rank.rank() {
            1 => None,
            _ => optimizer.step(RATE, model, gradients).err(),
        }
    });
    let gone = || Some(ReduceError::Gone { rank: 1 });
    assert_eq!(told, [gone(), None, gone()]);
}

/// It stands for nothing but itself: the mark of a mean over ranks is another.
#[test]
fn a_clamp_without_bounds_stays_on_its_rank() {
    let outputs = ranks(2, |reducer| {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(2, 1).init(&device);
        let model = broadcast_parameters(&reducer, model).expect("broadcast");
        let input = Tensor::<2>::full([3, 2], 1.0 + reducer.rank() as f64, &device);
        let loss = |model: &Linear, input: Tensor<2>| {
            let output = model.forward(input);
            let own = output.clone().clamp(f64::NEG_INFINITY, f64::INFINITY);
            (output.square().mean(), own)
        };
        let (_, own) = loss(&model, input.clone());
        let recorded = rekindle::record(&model, &input, loss).expect("recorded");
        let recorded = recorded.with_meter(Arc::new(Silent(())));
        let step = recorded.with_reducer(reducer).plain().expect("planned");
        let output = step.run(&model, input).expect("run");
        (own.into_data(), output.auxiliary.into_data())
    });
    assert_ne!(outputs[0].0, outputs[1].0);
    for (rank, (own, output)) in outputs.iter().enumerate() {
        assert_eq!(own, output, "rank {rank}");
    }
}

/// Parts on each rank are the whole batch on one device; a part that one rank refuses, none runs.
#[test]
fn parts_of_the_batch_run_on_each_rank() {
    let device = Device::flex().autodiff();
    let model = Mlp::model(&device);
    drop(model.valid());
    let batch = Mlp::batch(8, &device);
    let read = |model: &_, loss: Tensor<1>, gradients: &GradientsParams| {
        let mut trace = vec![("loss".to_owned(), floats(loss))];
        trace.extend(gradients_of(0, model, gradients));
        trace
    };
    let loss = Mlp::loss(&model, batch.clone());
    let gradients = GradientsParams::from_grads(loss.clone().backward(), &model);
    let expected = read(&model, loss, &gradients);
    let results = ranks(2, |rank| {
        let model = model.valid().train();
        let first = 4 * rank.rank();
        let own = |from: usize, to| Mlp::part(&batch, first + from..first + to);
        let parts = [own(0, 2), own(2, 4)];
        let unequal = [own(0, 2), own(2, 4 - rank.rank())];
        let recorded = rekindle::record(&model, &parts[0], Mlp::loss).expect("recorded");
        let recorded = recorded
            .with_meter(Arc::new(Silent(())))
            .with_reducer(rank.clone());
        let step = recorded.with_parts(2).plain().expect("planned");
        let refused = step.run_parts(&model, unequal).err().expect("refused");
        let output = step.run_parts(&model, parts).expect("runs");
        let trace = read(&model, output.loss, &output.gradients);
        (refused.to_string(), trace)
    });
    for (rank, (refused, trace)) in results.iter().enumerate() {
        assert!(refused.contains("part 2 of the batch"), "{refused}");
        assert_eq!(refused.contains("rank 1 failed"), rank == 0, "{refused}");
        assert_same("parts and ranks", &expected, trace, TOLERANCE);
        assert_same("both ranks", &results[0].1, trace, 0.0);
    }
}
