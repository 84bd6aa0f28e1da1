//! What ranks hold for the network, and what it takes of a step.

use std::{sync::Arc, time::Instant};

use burn::{
    module::Module,
    optim::{AdamConfig, SgdConfig},
    tensor::Device,
};
use rekindle::{
    Sharded,
    meter::{HostMeter, Meter},
    record::{
        Exchanges, Optimizer, PlanSummary, Rate, RecordError, TimedExchange,
        driver::{Wanted, rehearsal},
    },
    reduce::{Reducer, in_process, part},
};
use rekindle_plan::{Bytes, Planner, Seconds};

use super::{Normed, Silent, Task, WIDE, Wide, ranks, training::Either};

#[test]
fn what_is_exchanged_is_in_the_budget() {
    own_process!();
    let device = Device::flex().autodiff();
    let meter: Arc<dyn Meter> = Arc::new(HostMeter::new().expect("installed"));
    let mut model = Wide::model(&device);
    drop(model.valid());
    let batch = Wide::batch(512, &device);
    for in_backward in [false, true] {
        let mut optimizer = AdamConfig::new().init();
        let recorded = rekindle::record(&model, &batch, Wide::loss).expect("recorded");
        let recorded = match in_backward {
            false => recorded.with_optimizer(&optimizer),
            true => recorded.with_update_in_backward(&optimizer),
        };
        let recorded = recorded.with_meter(meter.clone());
        let recorded = recorded.with_reducer(in_process(1).remove(0));
        let mut step = recorded.plain().expect("planned");
        let smallest = match step.set_budget(Bytes(1), Planner::Auto) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("{other:?}"),
        };
        let budget = smallest + Bytes(1 << 20);
        step.set_budget(budget, Planner::Auto).expect("planned");
        for _ in 0..2 {
            meter.start_interval();
            let predicted = if in_backward {
                let output = step.run_updating(&mut model, batch.clone(), 1e-3, &mut optimizer);
                output.expect("run").predicted_peak
            } else {
                let output = step.run(&model, batch.clone()).expect("run");
                model = optimizer.step(1e-3, model, output.gradients);
                output.predicted_peak
            };
            let peak = meter.read().peak_in_use_bytes;
            eprintln!("in backward {in_backward}: {peak}, predicted {predicted}, budget {budget}");
            assert!(peak <= budget && peak <= predicted);
        }
    }
}

/// How a step runs.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// Its forward pass runs once more in the middle of the backward pass, as far as that needs it.
    again: bool,
    /// Parameters are updated in the backward pass.
    in_backward: bool,
    /// Ranks share out the updates.
    sharded: bool,
}

/// Each choice alone, and updates in the backward pass that ranks share out; a forward pass with means over ranks runs once.
fn ways(means: bool) -> impl Iterator<Item = Way> {
    let way = |again, in_backward, sharded| Way {
        again,
        in_backward,
        sharded,
    };
    let ways = [
        way(false, false, false),
        way(true, false, false),
        way(false, true, false),
        way(false, false, true),
        way(false, true, true),
    ];
    ways.into_iter().filter(move |way| !(means && way.again))
}

/// Of each step.
const SAMPLES: usize = 16;
const RANKS: usize = 2;

/// The plan of a rank's step, and what the network does in its first one if it `runs`.
fn shared<T: Task>(
    model: &T::Model,
    batch: &T::Batch,
    rank: Reducer,
    way: Way,
    runs: bool,
) -> (PlanSummary, Vec<TimedExchange>) {
    let own = T::part(batch, part(SAMPLES, rank.rank(), RANKS));
    let mut model = model.valid().train();
    let plain = || SgdConfig::new().init();
    let sharded = || Sharded::new(plain(), &model, rank.clone());
    let mut optimizer = Either {
        whole: plain(),
        sharded: way.sharded.then(sharded),
    };
    let recorded = rekindle::record(&model, &own, T::loss).expect("recorded");
    let recorded = recorded.with_meter(Arc::new(Silent(()))).with_reducer(rank);
    let recorded = match way.in_backward {
        true => recorded.with_update_in_backward(&optimizer),
        false => recorded.with_optimizer(&optimizer),
    };
    let mut step = recorded.plain().expect("planned");
    if way.again {
        let (graph, program) = step.graph();
        let operations = program.operations().iter().copied();
        let (backward, forward): (Vec<_>, Vec<_>) =
            operations.partition(|id| graph.operation(*id).backward);
        let (first, rest) = backward.split_at(backward.len() / 2);
        let wanted = Wanted::Operations {
            operations: [&forward[..], first, &forward, rest].concat(),
            offloaded: Vec::new(),
        };
        step.plan_again(None, wanted).expect("planned");
        assert!(step.plan().repeated > 0);
    }
    let plan = step.plan();
    if !runs {
        return (plan, Vec::new());
    }
    let began = Instant::now();
    let output = match way.in_backward {
        true => step.run_updating(&mut model, own, 1e-3, &mut optimizer),
        false => step.run(&model, own),
    };
    let mut output = output.expect("run");
    let mut exchange = output.exchange.take().expect("of ranks");
    if let (Some(shards), false) = (optimizer.shards().cloned(), way.in_backward) {
        let updated = optimizer.step(1e-3, model, output.gradients);
        let sent = shards.share(updated).1.expect("sent");
        exchange.add_shared(sent, began.elapsed());
    }
    (plan, exchange.operations)
}

/// Two ranks do what each has planned.
fn what_is_exchanged<T: Task>(means: bool) {
    let device = Device::flex().autodiff();
    let model = T::model(&device);
    drop(model.valid());
    let batch = T::batch(SAMPLES, &device);
    for way in ways(means) {
        for (plan, done) in ranks(RANKS, |rank| shared::<T>(&model, &batch, rank, way, true)) {
            let planned = plan.exchange.expect("of ranks");
            assert!(planned.link_measured);
            let taken = planned.taken;
            let of = |what| {
                let operations = done.iter().filter(move |one| one.what == what);
                let bytes: Bytes = operations.clone().map(|one| one.bytes).sum();
                (operations.count(), bytes)
            };
            // Each bucket holds whether a rank has failed, and the last one the loss, in 32 bits each.
            let beside = Bytes(4 * (taken.buckets as u64 + 1));
            assert_eq!(
                of(Exchanges::Gradients),
                (taken.buckets, taken.bytes + beside),
                "{way:?}"
            );
            assert_eq!(of(Exchanges::Mean).0, taken.means, "{way:?}");
            let sent = of(Exchanges::Parameters).1;
            assert_eq!(sent, taken.parameter_bytes, "{way:?}");
            assert_eq!(sent > Bytes::ZERO, way.sharded, "{way:?}");
        }
    }
}

#[test]
fn the_gradients_and_parameters_that_are_exchanged_are_the_planned_ones() {
    what_is_exchanged::<Wide>(false);
}

#[test]
fn the_means_that_are_exchanged_are_the_planned_ones() {
    what_is_exchanged::<Normed>(true);
}

/// Over a link by which two ranks sum `bytes` in this part of what a step computes, a tenth of it latency: the plan, what the
/// step computes, and what that sum takes.
fn linked<T: Task>(way: Way, bytes: usize, part: f64) -> (PlanSummary, f64, f64) {
    let device = Device::flex().autodiff();
    let model = T::model(&device);
    let batch = T::batch(SAMPLES, &device);
    let plan = |link| {
        let rank = rehearsal(RANKS, link);
        let plan = shared::<T>(&model, &batch, rank, way, false).0;
        let exchange = plan.exchange.expect("of ranks");
        assert!(!exchange.link_measured);
        let computing = (plan.predicted_time - exchange.taken.added()).0;
        (plan, computing)
    };
    let (_, computing) = plan(Rate {
        latency_s: Seconds::ZERO,
        bytes_per_s: 1e12,
    });
    let takes = part * computing;
    let (plan, computing) = plan(Rate {
        latency_s: Seconds(0.1 * takes / 2.0),
        bytes_per_s: bytes as f64 / (0.9 * takes),
    });
    (plan, computing, takes)
}

#[test]
fn the_time_of_a_step_on_a_slow_link_is_predicted() {
    for way in ways(false) {
        // A bucket takes a small part of what the step computes, or several times as long.
        for (part, hidden) in [(0.02, true), (5.0, false)] {
            let bucket = WIDE * WIDE * size_of::<f32>();
            let (plan, computing, takes) = linked::<Wide>(way, bucket, part);
            let taken = plan.exchange.expect("of ranks").taken;
            assert_eq!(taken.buckets, 4);
            close(taken.network_s.0, 4.0 * takes);
            // The last bucket waits for the end of the step in any case. Others are hidden at most by all that is computed.
            let (waited, staged) = (taken.waited_s.0, taken.staged_s.0);
            let least = takes.max(taken.network_s.0 - computing);
            assert!(waited + staged >= least, "{way:?}: {waited}, {least}");
            assert!(waited <= taken.network_s.0, "{way:?}: {waited}");
            assert_eq!(
                waited / taken.network_s.0 < 0.7,
                hidden,
                "{way:?}: {waited}"
            );
            // Four parameters are sent, each as large as a bucket, with half a sum's latency.
            let sent = if way.sharded { 4.0 * 0.95 * takes } else { 0.0 };
            assert!(taken.parameters_s.0 >= sent, "{way:?}");
            assert_eq!(taken.parameters_s > Seconds::ZERO, way.sharded);
        }
    }
}

#[test]
fn the_time_of_means_over_ranks_is_predicted() {
    for way in ways(true) {
        // Three channels, and whether a rank has failed.
        let mean = 4 * size_of::<f32>();
        // A mean takes a small part of what the step computes, or half of it.
        for part in [0.002, 0.5] {
            let (plan, _, takes) = linked::<Normed>(way, mean, part);
            let taken = plan.exchange.expect("of ranks").taken;
            // Four of each of three layers, two in each pass; without copies.
            assert_eq!(taken.means, 12);
            assert!(taken.means_s.0 >= 12.0 * takes, "{way:?}");
        }
    }
}

#[track_caller]
fn close(one: f64, other: f64) {
    assert!((one - other).abs() <= 1e-9 * other, "{one}, {other}");
}
