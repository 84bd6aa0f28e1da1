//! What ranks hold for the network, and what it takes of a step.

use std::{
    collections::VecDeque,
    sync::{Arc, Barrier, Mutex},
    time::Duration,
};

use burn::{
    module::Module,
    optim::{AdamConfig, SgdConfig},
    tensor::Device,
};
use rekindle::{
    Sharded,
    meter::{FailedAllocation, HostMeter, Meter},
    record::{ExchangeReading, Exchanges, Optimizer, Rate, RecordError, StepPlan, Wanted},
    reduce::{Clock, Reducer, in_process, part},
};
use rekindle_plan::{Bytes, Seconds};

use super::{Asked, Normed, Silent, Task, WIDE, Wide, each, training::Either};

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
        let recorded = || {
            let recorded = rekindle::record(&model, &batch, Wide::loss).expect("recorded");
            let recorded = match in_backward {
                false => recorded.with_optimizer(&optimizer),
                true => recorded.with_update_in_backward(&optimizer),
            };
            let alone = in_process(1, None).remove(0);
            recorded.with_meter(meter.clone()).with_reducer(alone)
        };
        let smallest = match recorded().within(Bytes(1)) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("{:?}", other.err()),
        };
        let budget = smallest + Bytes(1 << 20);
        let step = recorded().within(budget).expect("planned");
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

/// How far a predicted time may be from that of simulated clocks, relative. Buckets hold two values besides their
/// gradients, and clocks show whole nanoseconds.
const TOLERANCE: f64 = 1e-3;

/// The same with updates in the backward pass, whose time clocks show where the program has them though they run where their
/// bucket is done, and with buckets so small that these two values count.
const TOLERANCE_OF_UPDATES: f64 = 0.15;

/// By its rank's clock each step of a program takes as long as `seconds` say.
struct Paced {
    clock: Clock,
    seconds: Mutex<VecDeque<f64>>,
}

impl Paced {
    /// The next step of the program runs.
    fn next(&self) {
        let mut seconds = self.seconds.lock().expect("no panic");
        let next = seconds.pop_front().unwrap_or_default();
        self.clock.advance(Duration::from_secs_f64(next));
    }
}

impl Asked for Paced {
    fn asked(&self) -> Option<FailedAllocation> {
        self.next();
        None
    }
}

/// What a step of rank 0 came to, with what ranks send each other after its update.
struct Shared {
    plan: StepPlan,
    /// By the rank's clock.
    took: f64,
    exchange: ExchangeReading,
    loss: f32,
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

/// Runs a step by two ranks that are equally fast.
fn shared<T: Task>(model: &T::Model, batch: &T::Batch, link: Option<Rate>, way: Way) -> Shared {
    const RANKS: usize = 2;
    // Those of rank 0.
    let pace = Mutex::new(VecDeque::new());
    let paced = Barrier::new(RANKS);
    let mut results = each(in_process(RANKS, link), |rank| {
        let own = T::part(batch, part(SAMPLES, rank.rank(), RANKS));
        let mut model = model.valid().train();
        let mut optimizer = Either {
            whole: SgdConfig::new().init(),
            sharded: way
                .sharded
                .then(|| Sharded::new(SgdConfig::new().init(), &model, rank.clone())),
        };
        let meter = Arc::new(Silent(Paced {
            clock: rank.clock(),
            seconds: Mutex::default(),
        }));
        let recorded = rekindle::record(&model, &own, T::loss).expect("recorded");
        let recorded = recorded.with_meter(meter.clone());
        let recorded = recorded.with_reducer(rank.clone());
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
            let operations = [&forward[..], first, &forward, rest].concat();
            let wanted = Wanted::Operations {
                operations,
                offloaded: Vec::new(),
            };
            step.plan_again(None, wanted).expect("planned");
            assert!(step.plan().repeated > 0);
        }
        if rank.rank() == 0 {
            let (graph, program) = step.graph();
            let seconds = program.operations().iter();
            let seconds = seconds.map(|id| graph.operation(*id).seconds.0);
            *pace.lock().expect("no panic") = seconds.collect();
        }
        paced.wait();
        *meter.0.seconds.lock().expect("no panic") = pace.lock().expect("no panic").clone();
        let started = rank.clock().now();
        meter.0.next();
        let output = match way.in_backward {
            true => step.run_updating(&mut model, own, 1e-3, &mut optimizer),
            false => step.run(&model, own),
        };
        let mut output = output.expect("run");
        assert!(meter.0.seconds.lock().expect("no panic").is_empty());
        let mut exchange = output.exchange.take().expect("of ranks");
        if let (Some(shards), false) = (optimizer.shards().cloned(), way.in_backward) {
            let updated = optimizer.step(1e-3, model, output.gradients);
            let sent = shards.share(updated).1.expect("sent");
            exchange.add_shared(sent, rank.clock().now() - started);
        }
        Shared {
            plan: step.plan(),
            took: (rank.clock().now() - started).as_secs_f64(),
            exchange,
            loss: output.loss.into_scalar(),
        }
    });
    results.remove(0)
}

/// Of each step.
const SAMPLES: usize = 16;

/// A link over which two ranks sum so many bytes in so many seconds, a tenth of them latency.
fn link_of(bytes: f64, seconds: f64) -> Rate {
    Rate {
        latency_s: Seconds(0.1 * seconds / 2.0),
        bytes_per_s: bytes / (0.9 * seconds),
    }
}

/// What a step computes, the exchange apart.
fn computing(alone: &Shared) -> f64 {
    let added = alone.plan.exchange.expect("ranks").taken.added();
    (alone.plan.predicted_time - added).0
}

#[test]
fn the_time_of_a_step_on_a_slow_link_is_predicted() {
    let device = Device::flex().autodiff();
    let model = Wide::model(&device);
    drop(model.valid());
    let batch = Wide::batch(SAMPLES, &device);
    let after = Way::default();
    let (again, in_backward) = (
        Way {
            again: true,
            ..after
        },
        Way {
            in_backward: true,
            ..after
        },
    );
    let sharded = |way| Way {
        sharded: true,
        ..way
    };
    for way in [
        after,
        again,
        in_backward,
        sharded(after),
        sharded(in_backward),
    ] {
        let alone = shared::<Wide>(&model, &batch, None, way);
        let bucket = (WIDE * WIDE * size_of::<f32>()) as f64;
        // A bucket takes a small part of what the step computes, or several times as long.
        for (part, hidden) in [(0.02, true), (5.0, false)] {
            let link = link_of(bucket, part * computing(&alone));
            let Shared {
                plan,
                took,
                exchange,
                loss,
            } = shared::<Wide>(&model, &batch, Some(link), way);
            assert_eq!(loss.to_bits(), alone.loss.to_bits());
            let predicted = plan.exchange.expect("of ranks");
            assert!(predicted.link_measured);
            let found = predicted.ring.link;
            close(found.bytes_per_s, link.bytes_per_s);
            close(found.latency_s.0, link.latency_s.0);
            if way.in_backward {
                let error = (plan.predicted_time.0 - took).abs() / took;
                assert!(error <= TOLERANCE_OF_UPDATES, "{way:?}: {error}");
            } else {
                close(plan.predicted_time.0, took);
                close(predicted.taken.added().0, exchange.added().as_secs_f64());
            }
            assert_eq!(predicted.taken.buckets, 4);
            // The last of four buckets waits for the end of the step in any case, others where the operations after them happen
            // to be measured as short.
            let waits = predicted.taken.waited_s.0 / predicted.taken.network_s.0;
            assert_eq!(waits < 0.7, hidden, "{way:?}: {waits}");
            // Four messages of a parameter, each as large as a bucket.
            let sent = link.latency_s.0 + bucket / link.bytes_per_s;
            let sent = if way.sharded { 4.0 * sent } else { 0.0 };
            close(predicted.taken.parameters_s.0, sent);
            close(exchange.parameters.as_secs_f64(), sent);
        }
    }
}

#[test]
fn the_time_of_means_over_ranks_is_predicted() {
    let device = Device::flex().autodiff();
    let model = Normed::model(&device);
    drop(model.valid());
    let batch = Normed::batch(SAMPLES, &device);
    let after = Way::default();
    let in_backward = Way {
        in_backward: true,
        ..after
    };
    for way in [after, in_backward] {
        let alone = shared::<Normed>(&model, &batch, None, way);
        // Three channels, and whether a rank has failed.
        let bytes = (4 * size_of::<f32>()) as f64;
        // All twelve means, four of each layer, take a small part of what the step computes, or several times as long.
        for part in [0.002, 0.5] {
            let takes = part * computing(&alone);
            let link = link_of(bytes, takes);
            let Shared {
                plan,
                took,
                exchange,
                loss,
            } = shared::<Normed>(&model, &batch, Some(link), way);
            assert_eq!(loss.to_bits(), alone.loss.to_bits());
            let taken = plan.exchange.expect("of ranks").taken;
            assert_eq!(taken.means, 12);
            close(taken.means_s.0, 12.0 * takes);
            close(exchange.means.as_secs_f64(), 12.0 * takes);
            let means = exchange.operations.iter();
            assert_eq!(means.filter(|one| one.what == Exchanges::Mean).count(), 12);
            let error = (plan.predicted_time.0 - took).abs() / took;
            assert!(error <= TOLERANCE_OF_UPDATES, "{way:?}: {error}");
        }
    }
}

#[track_caller]
fn close(one: f64, other: f64) {
    assert!((one - other).abs() <= TOLERANCE * other, "{one}, {other}");
}
