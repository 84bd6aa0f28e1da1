//! A transformer on any device: burn's own training loop, then the recorded step plain, in segments, and within budgets.
//!
//! Prints one JSON document with a row for each: peaks of the pools and of live buffers, the time of a step with its
//! update in turn with burn's own loop, and whether gradients are the loop's.
//!
//! `cargo run --release --example transformer -- --device cuda --layers 24 --width 1024 --length 512 --batch 24`

use std::{error::Error, time::Instant};

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{
        Embedding, EmbeddingConfig, Linear, LinearConfig,
        attention::generate_autoregressive_mask,
        loss::CrossEntropyLossConfig,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    optim::{GradientsParams, SgdConfig},
    tensor::{Device, Distribution, Int, Tensor},
};
use clap::Parser;
use rekindle::{
    Dtype,
    meter::{MemoryReading, Meter},
    record::RecordError,
};
use rekindle_plan::{Bytes, Planner};
use rekindle_train::device::{DeviceId, open};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const TOKENS: usize = 256;
const RATE: f64 = 1e-3;

#[derive(Parser)]
struct Args {
    /// cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, default_value = "cpu")]
    device: String,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 64)]
    width: usize,
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Tokens of a sample
    #[arg(long, default_value_t = 32)]
    length: usize,
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Numbers of segments
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
    segments: Vec<usize>,
    /// Budgets in percent of the plain step's predicted peak, both beside the driver's context
    #[arg(long, value_delimiter = ',', default_value = "90,70,50,35,25")]
    budgets: Vec<u64>,
    /// Steps of each row, in turn with as many of burn's own
    #[arg(long, default_value_t = 3)]
    steps: usize,
}

#[derive(Module, Debug)]
struct Gpt {
    tokens: Embedding,
    body: TransformerEncoder,
    head: Linear,
}

impl Gpt {
    fn new(args: &Args, device: &Device) -> Self {
        let body =
            TransformerEncoderConfig::new(args.width, 4 * args.width, args.heads, args.layers);
        Self {
            tokens: EmbeddingConfig::new(TOKENS, args.width).init(device),
            body: body.with_dropout(0.0).with_norm_first(true).init(device),
            head: LinearConfig::new(args.width, TOKENS).init(device),
        }
    }

    fn loss(&self, (tokens, next): (Tensor<2, Int>, Tensor<1, Int>)) -> Tensor<1> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let mask = generate_autoregressive_mask(batch, length, &device);
        let input = TransformerEncoderInput::new(self.tokens.forward(tokens)).mask_attn(mask);
        let logits = self.head.forward(self.body.forward(input)).flatten(0, 1);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, next)
    }
}

/// A parameter's gradient as numbers, those of all parameters one after the other.
fn values(model: &Gpt, gradients: &GradientsParams) -> Vec<f32> {
    struct All<'a>(&'a GradientsParams, Vec<f32>);
    impl ModuleVisitor for All<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.extend(gradient.into_data().iter::<f32>());
            }
        }
    }
    let mut all = All(gradients, Vec::new());
    model.visit(&mut all);
    all.1
}

/// The largest difference, in shares of the largest value.
fn difference(one: &[f32], other: &[f32]) -> f64 {
    let largest = other
        .iter()
        .fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let apart = one
        .iter()
        .zip(other)
        .fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    if one.len() == other.len() {
        f64::from(apart / largest)
    } else {
        f64::INFINITY
    }
}

fn parsed(device: &str) -> Option<DeviceId> {
    let (kind, number) = device.split_once(':').unwrap_or((device, "0"));
    let number = number.parse().ok()?;
    match kind {
        "cpu" => Some(DeviceId::Cpu),
        "cuda" => Some(DeviceId::Cuda(number)),
        "wgpu" => Some(DeviceId::Wgpu(number)),
        _ => None,
    }
}

/// Seconds of one step with its update, and what memory it took.
fn timed(
    meter: &dyn Meter,
    step: impl FnOnce() -> Result<(), RecordError>,
) -> Result<(f64, MemoryReading), RecordError> {
    meter.trim();
    meter.read();
    meter.start_interval();
    let start = Instant::now();
    step()?;
    let memory = meter.read();
    Ok((start.elapsed().as_secs_f64(), memory))
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    rekindle_train::device::prepare();
    let args = Args::parse();
    let id = parsed(&args.device).ok_or("--device takes cpu, cuda, cuda:N, wgpu or wgpu:N")?;
    let opened = open(id, Dtype::F32)?;
    let (device, meter) = (&opened.device, &*opened.meter);
    device.seed(1);
    let model = Gpt::new(&args, device);
    let range = Distribution::Uniform(0.0, TOKENS as f64);
    let batch = (
        Tensor::<2, Int>::random([args.batch, args.length], range, device),
        Tensor::<1, Int>::random([args.batch * args.length], range, device),
    );
    let mut optimizer = SgdConfig::new().init();
    // The updated model is dropped: every step starts from the same parameters.
    let mut update = |gradients| drop(optimizer.step(RATE, model.clone(), gradients));
    let own = |batch| GradientsParams::from_grads(model.loss(batch).backward(), &model);
    let expected = values(&model, &own(batch.clone()));

    let recorded = rekindle::record(&model, &batch, Gpt::loss)?
        .with_optimizer(&SgdConfig::new().init())
        .with_meter(opened.meter.clone());
    let mut step = recorded.plain()?;
    let plan = step.plan();
    let (operations, plain_peak) = (plan.operations, plan.plain_peak);
    let mut plans = vec![("plain".to_owned(), None, Planner::None)];
    plans.extend(
        args.segments
            .iter()
            .map(|&k| (format!("{k} segments"), None, Planner::Segments(Some(k)))),
    );
    let context = meter.context_bytes();
    plans.extend(args.budgets.iter().map(|&percent| {
        let budget = context + Bytes((plain_peak - context).0 / 100 * percent);
        (format!("{percent}%"), Some(budget), Planner::Auto)
    }));

    let mut rows: Vec<Value> = Vec::new();
    for (name, budget, planner) in plans {
        if let Err(error) = step.plan_again(budget, planner) {
            rows.push(json!({ "name": "transformer", "plan": name, "budget_bytes": budget, "message": error.to_string() }));
            continue;
        }
        let plan = step.plan();
        let first = step.run(&model, batch.clone())?;
        let apart = difference(&values(&model, &first.gradients), &expected);
        drop(first);
        let (mut own_s, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut measured, mut in_use, mut own_peak) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        for _ in 0..args.steps {
            let (plain_s, memory) = timed(meter, || {
                update(own(batch.clone()));
                Ok(())
            })?;
            own_peak = own_peak.max(counted(memory, meter));
            let (planned_s, memory) = timed(meter, || {
                let output = step.run(&model, batch.clone())?;
                // The step has an interval of its own; what comes after it is the update's.
                in_use = in_use.max(output.memory.peak_in_use_bytes);
                measured = measured.max(counted(output.memory, meter));
                update(output.gradients);
                Ok(())
            })?;
            measured = measured.max(counted(memory, meter));
            in_use = in_use.max(memory.peak_in_use_bytes);
            own_s.push(plain_s);
            seconds.push(planned_s);
            ratios.push(planned_s / plain_s);
        }
        rows.push(json!({
            "name": "transformer",
            "plan": name,
            "budget_bytes": budget,
            "predicted_peak_bytes": plan.predicted_peak,
            "measured_peak_bytes": measured,
            "in_use_bytes": in_use,
            "held": budget.map(|budget| measured <= budget),
            "own_loop_peak_bytes": own_peak,
            "step_s": median(seconds),
            "own_loop_step_s": median(own_s),
            "own_loop_ratio": median(ratios),
            "predicted_ratio": plan.predicted_time.0 / plan.plain_time.0,
            "repeated": plan.repeated,
            "gradients_apart": apart,
        }));
    }
    println!(
        "{}",
        serde_json::to_string_pretty(
            &json!({ "device": id.to_string(), "operations": operations, "rows": rows })
        )?
    );
    Ok(())
}

/// What a budget bounds: the pools' reserved bytes and the driver's context, or bytes in use where there are no pools.
fn counted(memory: MemoryReading, meter: &dyn Meter) -> Bytes {
    match memory.peak_reserved_bytes {
        Some(reserved) => reserved + meter.context_bytes(),
        None => memory.peak_in_use_bytes,
    }
}
