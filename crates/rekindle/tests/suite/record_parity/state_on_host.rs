//! Optimizer state on the host between updates: planned where that is faster by the link's own times, and only there.
//!
//! On the processor the state would wait in the memory that it leaves, so a meter stands for a device's here, and nothing runs.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use burn::{
    module::{Module, ParamId},
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    tensor::{Device, Tensor, activation::gelu},
};
use rekindle::{
    meter::{Count, HostMeter, MemoryReading, Meter, PeakMemory},
    record::{
        Link, Optimizer, PlanSummary, RecordError, Step, Update,
        driver::{Updates, with_reserve},
    },
};
use rekindle_plan::{Bytes, Planner, Seconds, graph::Rate};

const WIDTH: usize = 128;
const DEPTH: usize = 8;
const BATCH: usize = 1024;
/// Adam's two moments of a layer's weights, in `f32`.
const STATE: u64 = 2 * (WIDTH * WIDTH * 4) as u64;
/// What a tensor of the heap takes besides its numbers.
const HEADER: u64 = 1024;
/// Times are sums of a few hundred numbers.
const ROUNDING: f64 = 1e-9;

/// The heap as a device's memory; once the step is measured, without what plans take of it.
struct Pools {
    heap: HostMeter,
    fixed: OnceLock<MemoryReading>,
}

impl Meter for Pools {
    fn read(&self) -> MemoryReading {
        let reading = || self.heap.read();
        let reading = self.fixed.get().copied().unwrap_or_else(reading);
        MemoryReading {
            reserved_bytes: Some(reading.in_use_bytes),
            ..reading
        }
    }

    fn start_interval(&self) {
        self.heap.start_interval();
    }

    fn lifetime_peak(&self) -> PeakMemory {
        self.heap.lifetime_peak()
    }
}

/// Adam as planning sees one that can keep its state on the host.
struct Movable(ModuleOptimizer);

impl Optimizer for Movable {
    fn for_trial(&self) -> Self {
        Self(Optimizer::for_trial(&self.0))
    }

    fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M {
        self.0.step(rate, module, gradients)
    }

    fn movable_tensors(&self) -> usize {
        2
    }
}

type Loss = fn(&Vec<Linear>, Tensor<2>) -> Tensor<1>;

const LOSS: Loss = |layers, input| {
    let output = layers.iter().fold(input, |x, layer| gelu(layer.forward(x)));
    output.square().mean()
};

fn link(latency_s: f64, bytes_per_s: f64, host_bytes: u64) -> Link {
    let rate = |factor: f64| Rate {
        latency_s: Seconds(latency_s * factor),
        bytes_per_s: bytes_per_s / factor,
    };
    Link {
        to_host: rate(1.0),
        to_device: rate(2.0),
        host_bytes: Bytes(host_bytes),
        staging_bytes: Bytes(8 << 20),
    }
}

/// What moving so many bytes of two tensors takes.
fn moved_s(link: &Link, bytes: Bytes, states: usize) -> f64 {
    let Link {
        to_host, to_device, ..
    } = link;
    let latency = 2.0 * (to_host.latency_s.0 + to_device.latency_s.0);
    let bytes = bytes.0 as f64;
    states as f64 * latency + bytes / to_host.bytes_per_s + bytes / to_device.bytes_per_s
}

type Recorded = Step<Vec<Linear>, Tensor<2>, Tensor<1>, Loss>;

fn measured(model: &Vec<Linear>, batch: &Tensor<2>, link: Link, updates: Updates) -> Recorded {
    let pools = Arc::new(Pools {
        heap: HostMeter::new().expect("a counting allocator"),
        fixed: OnceLock::new(),
    });
    let recorded = rekindle::record(model, batch, LOSS).expect("recorded");
    let recorded = recorded
        .with_updates(&Movable(AdamConfig::new().init()), updates)
        .with_meter(pools.clone())
        .with_count(Count::InUse)
        .with_link(Some(link));
    let mut step = recorded.plain().expect("plain");
    pools.fixed.set(pools.read()).expect("once");
    step.set_budget(Bytes::MAX, Planner::None).expect("plain");
    step
}

/// The plan in a budget that leaves out so many bytes of the plain step, and the parameters whose state it moves.
fn without(
    step: &mut Recorded,
    bytes: u64,
    planner: Planner,
) -> Result<(PlanSummary, HashSet<ParamId>), RecordError> {
    let budget = with_reserve(step.plan().plain_peak - Bytes(bytes));
    step.set_budget(budget, planner)?;
    let plan = step.plan();
    println!("{plan}");
    assert!(plan.predicted_peak <= budget);
    Ok((plan, step.state_on_host()))
}

#[test]
fn the_optimizers_state_waits_on_the_host_where_that_is_the_fastest_plan() {
    own_process!();
    let device = Device::flex().autodiff();
    let model: Vec<Linear> = (0..DEPTH)
        .map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device))
        .collect();
    let batch = Tensor::<2>::ones([BATCH, WIDTH], &device);
    let after = Updates::One(Update::After);
    let weights: HashSet<ParamId> = model.iter().map(|layer| layer.weight.id).collect();
    let (auto, none) = (Planner::Auto, Planner::None);
    const MUCH: u64 = 1 << 40;

    // Of a step that stays plain, as many states go as it lacks, and nothing else.
    let quick = link(1e-5, 1e9, MUCH);
    let mut step = measured(&model, &batch, quick, after);
    for states in [1, 2, DEPTH] {
        let lacking = states as u64 * STATE - STATE / 2;
        let (plan, on_host) = without(&mut step, lacking, none).expect("a plan");
        assert!(on_host.len() == states && on_host.is_subset(&weights));
        let offload = plan.offload.expect("a link");
        let (bytes, exact) = (offload.state_bytes, states as u64 * STATE);
        assert!((exact..exact + states as u64 * 2 * HEADER).contains(&bytes.0));
        assert_eq!((plan.repeated, offload.tensors), (0, 0));
        let added = plan.predicted_time.0 - plan.plain_time.0;
        let expected = moved_s(&quick, bytes, states);
        let wrong = (added - expected)
            .abs()
            .max((offload.state_s.0 - expected).abs());
        assert!(wrong <= ROUNDING * plan.plain_time.0, "{added}, {expected}");
    }
    // The host has room for one state alone.
    let mut step = measured(&model, &batch, link(1e-5, 1e9, STATE * 3 / 2), after);
    let (_, on_host) = without(&mut step, STATE / 2, none).expect("a plan");
    assert_eq!(on_host.len(), 1);
    let refused = without(&mut step, STATE * 3 / 2, none);
    assert!(matches!(refused, Err(RecordError::Infeasible { .. })));

    // Recomputing takes less time than a slow link, as long as it is enough.
    let mut step = measured(&model, &batch, link(1.0, 1e3, MUCH), after);
    let (plan, on_host) = without(&mut step, 3 * STATE / 2, auto).expect("a plan");
    assert!(plan.repeated > 0 && on_host.is_empty());
    // Where nothing else fits, all state goes, and what is then named as enough is.
    let smallest = |step: &mut Recorded| match step.set_budget(Bytes(1), auto) {
        Err(RecordError::Infeasible { smallest, .. }) => smallest,
        other => panic!("{other:?}"),
    };
    let with = smallest(&mut step);
    step.set_budget(with, auto).expect("a plan");
    assert_eq!(step.state_on_host().len(), 2 * DEPTH);
    step.forbid_offload();
    let without_link = smallest(&mut step);
    println!("{with} at least, {without_link} without a link");
    // An update takes no more than one state and its temporary bytes at a time.
    assert!(with + Bytes((DEPTH as u64 - 2) * STATE) <= without_link);

    // No plan is slower than the best one without state on the host, and than the plain step with as much of it as that lacks.
    for (updates, states) in [
        (after, vec![1, 4, 7]),
        (Updates::One(Update::InBackward), vec![1, 3]),
    ] {
        let middling = link(2e-6, 4e9, MUCH);
        let mut step = measured(&model, &batch, middling, updates);
        let plans = states.into_iter().map(|states| {
            let plan = without(&mut step, states * STATE, auto).expect("a plan").0;
            (states, plan)
        });
        let plans: Vec<_> = plans.collect();
        step.forbid_offload();
        for (states, plan) in plans {
            let (alone, on_host) = without(&mut step, states * STATE, auto).expect("a plan");
            assert!(on_host.is_empty());
            let moved = moved_s(
                &middling,
                Bytes(states * (STATE + 2 * HEADER)),
                states as usize,
            );
            let mut others = vec![alone.predicted_time.0];
            // In the backward pass a state that comes for its update is there beside activations.
            if updates == after {
                others.push(alone.plain_time.0 + moved);
            }
            for other in others {
                assert!(
                    plan.predicted_time.0 <= other * (1.0 + ROUNDING),
                    "{plan}: {other}"
                );
            }
            let wrong = (plan.plain_time.0 - alone.plain_time.0).abs();
            assert!(wrong <= ROUNDING * alone.plain_time.0);
            let apart = plan.plain_peak.0.abs_diff(alone.plain_peak.0);
            assert!(apart <= 64 * HEADER, "{apart}");
        }
    }
}
