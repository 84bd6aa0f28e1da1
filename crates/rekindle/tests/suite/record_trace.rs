//! Memory operation by operation: what is in use after each step of a program is what the simulator says, so that no
//! tensor outlives the first operation that no longer needs it.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig,
        attention::generate_autoregressive_mask,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    optim::SgdConfig,
    tensor::{Device, Distribution, Tensor, activation},
};
use rekindle::{
    TensorTree,
    meter::{FailedAllocation, HostMeter, MemoryReading, Meter, PeakMemory},
    record::RecordError,
};
use rekindle_plan::{
    Bytes, Planner,
    graph::{Graph, Program, simulate},
};

/// What tables and the headers of tensors take more or less in a whole step, half of it at most with one operation:
/// below the smallest activation and the smallest weight's gradient here, 256 KiB.
const HEADERS: u64 = 96 << 10;
/// What the optimizer keeps besides for each parameter that it has updated, until the step ends.
const UPDATED: u64 = 4 << 10;
/// Runs of which one must agree: kernels take scratch whenever another thread works for them first, and keep it.
const RUNS: usize = 6;
/// Threads that kernels run on, more than most test machines have processors: each keeps scratch, which is no tensor.
const THREADS: usize = 8;
/// More operations than any step here has.
const MOST_OPERATIONS: usize = 4096;

/// Keeps what is in use after each operation: a step that has a budget asks for a failure, and reads memory, behind each.
struct EachOperation {
    host: HostMeter,
    asked: AtomicBool,
    seen: Mutex<Vec<Bytes>>,
}

impl EachOperation {
    fn new() -> Self {
        Self {
            host: HostMeter::new().expect("a counting allocator"),
            asked: AtomicBool::new(false),
            // It takes no memory while a step runs.
            seen: Mutex::new(Vec::with_capacity(MOST_OPERATIONS)),
        }
    }

    fn clear(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clear();
    }
}

impl Meter for EachOperation {
    fn read(&self) -> MemoryReading {
        let reading = self.host.read();
        if self.asked.swap(false, Ordering::Relaxed) {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < seen.capacity() {
                seen.push(reading.in_use_bytes);
            }
        }
        reading
    }

    fn start_interval(&self) {
        self.host.start_interval();
    }

    fn lifetime_peak(&self) -> PeakMemory {
        self.host.lifetime_peak()
    }

    fn gather_threads(&self, on: bool) {
        self.host.gather_threads(on);
    }

    fn failure(&self) -> Option<FailedAllocation> {
        self.asked.store(true, Ordering::Relaxed);
        self.host.failure()
    }
}

/// The first step of a program behind which something else is in use than simulated, bytes that are there all along apart.
fn first_difference(
    graph: &Graph,
    program: &Program,
    simulated: &[Bytes],
    seen: &[Bytes],
) -> Option<String> {
    assert_eq!(seen.len(), program.operations().len());
    let beside = seen.iter().zip(simulated);
    let beside: Vec<i64> = beside
        .map(|(seen, simulated)| seen.0 as i64 - simulated.0 as i64)
        .collect();
    let mut updates = 0;
    for (place, &id) in program.operations().iter().enumerate() {
        updates += u64::from(graph.operation(id).updates.is_some());
        let apart = beside[place].abs_diff(beside[0]);
        let changed = beside[place].abs_diff(beside[place.saturating_sub(1)]);
        if apart > HEADERS + updates * UPDATED || changed > HEADERS / 2 {
            return Some(format!(
                "step {place} of {} (operation {id}): {} in use, {} simulated, {apart} bytes apart",
                program.operations().len(),
                seen[place],
                simulated[place],
            ));
        }
    }
    None
}

/// Runs a step plain and in a small budget, with updates after it or in its backward pass, and compares.
fn check<M, I, F>(name: &str, mut model: M, batch: &I, loss: F)
where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1> + Clone,
{
    drop(model.valid());
    let mut optimizer = SgdConfig::new().init();
    for in_backward in [false, true] {
        let meter = Arc::new(EachOperation::new());
        let recorded = rekindle::record(&model, batch, loss.clone()).expect(name);
        let recorded = match in_backward {
            true => recorded.with_update_in_backward(&optimizer),
            false => recorded.with_optimizer(&optimizer),
        };
        let recorded = recorded.with_meter(meter.clone()).with_finite_check(false);
        let mut step = recorded.plain().expect(name);
        let plain = step.plan().plain_peak;
        let smallest = match step.set_budget(Bytes(1), Planner::Auto) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("{name}: {other:?}"),
        };
        let mut repeated = 0;
        for share in [0.1, 1.2] {
            let more = (plain - smallest).0 as f64 * share;
            let budget = Bytes(smallest.0 + more as u64);
            step.set_budget(budget, Planner::Auto).expect(name);
            let (graph, program) = step.graph();
            let simulated = simulate(&graph, &program);
            let mut wrong = None;
            for _ in 0..RUNS {
                meter.clear();
                let ran = match in_backward {
                    true => step.run_updating(&mut model, batch.clone(), 1e-3, &mut optimizer),
                    false => step.run(&model, batch.clone()),
                };
                if let Err(RecordError::OverBudget { in_use, budget }) = ran {
                    wrong = Some(format!("{in_use} in use of {budget}"));
                    continue;
                }
                ran.expect(name);
                let seen = meter.seen.lock().unwrap_or_else(PoisonError::into_inner);
                wrong = first_difference(&graph, &program, &simulated.resident, &seen);
                if wrong.is_none() {
                    break;
                }
            }
            let again = simulated.repeated;
            assert_eq!(
                wrong, None,
                "{name}, update in backward {in_backward}, {share}: {again} again"
            );
            repeated = repeated.max(simulated.repeated);
        }
        assert!(repeated > 0, "{name}: nothing ran again");
    }
}

#[derive(Module, Debug)]
struct Deep {
    layers: Vec<Linear>,
}

#[derive(Module, Debug)]
struct Attending {
    body: TransformerEncoder,
    head: Linear,
}

/// A device whose kernels run on [`THREADS`].
fn device() -> Device {
    let threads = rayon::ThreadPoolBuilder::new().num_threads(THREADS);
    threads.build_global().expect("no threads so far");
    let device = Device::flex().autodiff();
    device.seed(3);
    device
}

const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);

#[test]
fn each_operation_leaves_what_the_simulator_says() {
    own_process!();
    let device = device();
    let layers = (0..8).map(|_| LinearConfig::new(256, 256).init(&device));
    let deep = Deep {
        layers: layers.collect(),
    };
    let batch = Tensor::<2>::random([256, 256], NORMAL, &device);
    check("deep", deep, &batch, |model, x: Tensor<2>| {
        let layers = model.layers.iter();
        let x = layers.fold(x, |x, layer| x.clone() + activation::gelu(layer.forward(x)));
        x.square().mean()
    });
}

#[test]
fn each_operation_of_a_transformer_leaves_what_the_simulator_says() {
    own_process!();
    let device = device();
    let body = TransformerEncoderConfig::new(256, 512, 4, 2).with_norm_first(true);
    let attending = Attending {
        body: body.init(&device),
        head: LinearConfig::new(256, 256).init(&device),
    };
    let batch = Tensor::<3>::random([4, 64, 256], NORMAL, &device);
    check("transformer", attending, &batch, |model, x: Tensor<3>| {
        let mask = generate_autoregressive_mask(4, 64, &x.device());
        let input = TransformerEncoderInput::new(x).mask_attn(mask);
        let output = model.head.forward(model.body.forward(input));
        output.square().mean()
    });
}
