//! Recorded steps against burn's own loop: peak and time of the plain step and of plans inside smaller budgets, on models
//! as a burn user writes them.
//!
//! The plain loop runs in turn with each plan, so that what else the machine does meets both. A budget is given as a
//! share of the way from what the process holds between steps to the plain step's predicted peak.
//!
//! `cargo bench --bench recorded [-- CASE..]`, with cases `deep`, `deep-large`, `conv`, `u-net`, `gpt`.

use std::time::Instant;

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear,
        LinearConfig, PaddingConfig2d,
        attention::generate_autoregressive_mask,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
        pool::{AvgPool2d, AvgPool2dConfig},
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    optim::GradientsParams,
    tensor::{Device, Distribution, Int, Tensor, activation},
};
use rekindle::{TensorTree, record::RecordError};
use rekindle_plan::Bytes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

/// Times that each plan and the plain loop run, in turn.
const ROUNDS: usize = 5;
const SHARES: [f64; 8] = [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1];

#[derive(Module, Debug)]
struct Deep {
    layers: Vec<Linear>,
}

impl Deep {
    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        layers.fold(input, |x, layer| activation::gelu(layer.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Block {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        let conv = Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            conv: conv.init(device),
            norm: BatchNormConfig::new(to).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        activation::relu(self.norm.forward(self.conv.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Conv {
    blocks: Vec<Block>,
}

impl Conv {
    fn forward(&self, input: Tensor<4>) -> Tensor<2> {
        let x = self.blocks.iter().fold(input, |x, block| block.forward(x));
        x.mean_dim(3).mean_dim(2).flatten(1, 3)
    }
}

#[derive(Module, Debug)]
struct UNet {
    down: Vec<Block>,
    up: Vec<Block>,
    shrink: AvgPool2d,
    dropout: Dropout,
}

impl UNet {
    fn new(device: &Device) -> Self {
        let down = (0..4).map(|place| Block::new(if place == 0 { 3 } else { 16 }, 16, device));
        Self {
            down: down.collect(),
            up: (0..4).map(|_| Block::new(32, 16, device)).collect(),
            shrink: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.2).init(),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        let mut skips = Vec::new();
        for block in &self.down {
            x = block.forward(x);
            skips.push(x.clone());
            x = self.shrink.forward(x);
        }
        x = self.dropout.forward(x);
        for (block, skip) in self.up.iter().zip(skips.into_iter().rev()) {
            let larger = x.repeat_dim(2, 2).repeat_dim(3, 2);
            x = block.forward(Tensor::cat(vec![larger, skip], 1));
        }
        x.mean_dim(3).mean_dim(2).flatten(1, 3)
    }
}

#[derive(Module, Debug)]
struct Gpt {
    tokens: Embedding,
    body: TransformerEncoder,
    head: Linear,
}

impl Gpt {
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [batch, length] = tokens.dims();
        let mask = generate_autoregressive_mask(batch, length, &tokens.device());
        let x = TransformerEncoderInput::new(self.tokens.forward(tokens)).mask_attn(mask);
        self.head.forward(self.body.forward(x)).flatten(0, 1)
    }
}

fn cross_entropy(output: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let device = output.device();
    CrossEntropyLossConfig::new()
        .init(&device)
        .forward(output, targets)
}

/// Gradients as numbers, in the module's order.
fn bits<M: Module>(model: &M, gradients: &GradientsParams) -> Vec<Vec<u32>> {
    struct All<'a>(&'a GradientsParams, Vec<Vec<u32>>);
    impl ModuleVisitor for All<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                let data = gradient.into_data();
                self.1.push(data.iter::<f32>().map(f32::to_bits).collect());
            }
        }
    }
    let mut all = All(gradients, Vec::new());
    model.visit(&mut all);
    all.1
}

fn case<M, I, F>(
    name: &str,
    device: &Device,
    model: &M,
    batch: I,
    step: F,
) -> Result<(), RecordError>
where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1> + Clone,
{
    // Parameters are drawn at their first use otherwise, between the seed and the first step's dropout.
    drop(model.valid());
    let plain = || {
        device.seed(5);
        GradientsParams::from_grads(step(model, batch.clone()).backward(), model)
    };
    let expected = bits(model, &plain());
    let measure = |run: &dyn Fn() -> GradientsParams| {
        let held = rekindle_alloc::in_use();
        rekindle_alloc::reset_peak();
        let start = Instant::now();
        let gradients = run();
        let seconds = start.elapsed().as_secs_f64();
        drop(gradients);
        (seconds, rekindle_alloc::peak(), held)
    };
    let recorded = || rekindle::record(model, &batch, step.clone());
    let of_plain = recorded()?.plain()?.plan();
    println!(
        "\n{name}: {} operations, compared with their recording in {:.2} ms, {:.1}% of the plain step",
        of_plain.operations,
        of_plain.comparison_time.0 * 1e3,
        100.0 * of_plain.comparison_time.0 / of_plain.plain_time.0
    );
    println!(
        "  {:>6} {:>11} {:>11} {:>11} {:>7}  {:>7} {:>7} {:>9}  {:>6} {:>7}  {:<8} planned in",
        "share",
        "budget",
        "predicted",
        "measured",
        "error",
        "time",
        "pred.",
        "spread",
        "equal",
        "again",
        "planner"
    );
    let held = measure(&plain).2;
    let plain_peak = of_plain.predicted_peak;
    for share in [1.0].into_iter().chain(SHARES) {
        let above = plain_peak.0.saturating_sub(held as u64) as f64;
        let budget = Bytes(held as u64 + (above * share) as u64);
        let start = Instant::now();
        let planned = if share < 1.0 {
            recorded()?.within(budget)
        } else {
            recorded()?.plain()
        };
        let planned = match planned {
            Ok(planned) => planned,
            Err(RecordError::Infeasible { smallest, .. }) => {
                println!(
                    "  {share:>6.2} {:>11}: the smallest is {}",
                    mb(budget.0),
                    mb(smallest.0)
                );
                break;
            }
            Err(error) => return Err(error),
        };
        let planning = start.elapsed().as_secs_f64();
        let run = || {
            device.seed(5);
            match planned.run(model, batch.clone()) {
                Ok(output) => output.gradients,
                Err(error) => panic!("{error}"),
            }
        };
        let equal = bits(model, &run()) == expected;
        let mut ratios = Vec::new();
        let mut peak = 0;
        for _ in 0..ROUNDS {
            let (plain_s, _, _) = measure(&plain);
            let (seconds, run_peak, _) = measure(&run);
            ratios.push(seconds / plain_s);
            peak = peak.max(run_peak);
        }
        ratios.sort_by(f64::total_cmp);
        let plan = planned.plan();
        println!(
            "  {share:>6.2} {:>11} {:>11} {:>11} {:>+6.1}%  {:>6.2}x {:>6.2}x {:>4.2}-{:.2}  {:>6} {:>7}  {:<8} {planning:.2} s{}",
            mb(budget.0),
            mb(plan.predicted_peak.0),
            mb(peak as u64),
            (plan.predicted_peak.0 as f64 / peak as f64 - 1.0) * 100.0,
            ratios[ratios.len() / 2],
            plan.predicted_time.0 / plan.plain_time.0,
            ratios[0],
            ratios[ratios.len() - 1],
            if equal { "yes" } else { "NO" },
            plan.repeated,
            format!("{:?}", plan.planner),
            if peak as u64 > budget.0 && share < 1.0 {
                "  BUDGET EXCEEDED"
            } else {
                ""
            },
        );
    }
    Ok(())
}

fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn main() -> Result<(), RecordError> {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with('-'))
        .collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|one| one == name);
    let device = Device::flex().autodiff();
    device.seed(1);
    let normal = Distribution::Normal(0.0, 1.0);
    let classes = |count: usize| Tensor::<1, Int>::full([count], 3, &device);
    for (name, batch) in [("deep", 512), ("deep-large", 2048)] {
        if wanted(name) {
            let layers = (0..64).map(|_| LinearConfig::new(512, 512).init(&device));
            let model = Deep {
                layers: layers.collect(),
            };
            let batch = (
                Tensor::<2>::random([batch, 512], normal, &device),
                classes(batch),
            );
            case(name, &device, &model, batch, |model, (x, y)| {
                cross_entropy(model.forward(x), y)
            })?;
        }
    }
    if wanted("conv") {
        let blocks = (0..8).map(|place| Block::new(if place == 0 { 3 } else { 32 }, 32, &device));
        let model = Conv {
            blocks: blocks.collect(),
        };
        let batch = (
            Tensor::<4>::random([32, 3, 64, 64], normal, &device),
            classes(32),
        );
        case("conv", &device, &model, batch, |model, (x, y)| {
            cross_entropy(model.forward(x), y)
        })?;
    }
    if wanted("u-net") {
        let model = UNet::new(&device);
        let batch = (
            Tensor::<4>::random([16, 3, 96, 96], normal, &device),
            classes(16),
        );
        case("u-net", &device, &model, batch, |model, (x, y)| {
            cross_entropy(model.forward(x), y)
        })?;
    }
    if wanted("gpt") {
        let body = TransformerEncoderConfig::new(128, 512, 4, 6)
            .with_dropout(0.1)
            .with_norm_first(true);
        let model = Gpt {
            tokens: EmbeddingConfig::new(256, 128).init(&device),
            body: body.init(&device),
            head: LinearConfig::new(128, 256).with_bias(false).init(&device),
        };
        let range = Distribution::Uniform(0.0, 256.0);
        let batch = (
            Tensor::<2, Int>::random([16, 128], range, &device),
            classes(16 * 128),
        );
        case("gpt", &device, &model, batch, |model, (x, y)| {
            cross_entropy(model.forward(x), y)
        })?;
    }
    Ok(())
}
