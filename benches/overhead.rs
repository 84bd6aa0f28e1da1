//! What the executor itself costs: its step's time less the plain loop's, less that of the forwards it runs again.
//!
//! Two cases. 1,000 and 4,000 x Linear(10, 10), where layers are nearly free: the cost per layer, which must not grow with
//! the depth. 64 x (Linear 512 + GELU) at batch 256: the cost as a share of the plain step.
//!
//! `cargo bench --bench overhead [-- --json]`

use std::time::Instant;

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Tensor, activation::gelu},
};
use rekindle::{Executor, Layer, Sequential, StepSeed};
use rekindle_plan::{
    Bytes, Chain, LossCost, OptimizerCost, PlanRequest, PlannerKind, Schedule, Seconds, Stage,
    plan, planner, simulate,
};

const ROUNDS: usize = 21;

/// A stack of equal layers.
struct Case {
    depth: usize,
    width: usize,
    gelu: bool,
    batch: usize,
}

const CASES: [Case; 3] = [
    Case {
        depth: 1000,
        width: 10,
        gelu: false,
        batch: 4,
    },
    Case {
        depth: 4000,
        width: 10,
        gelu: false,
        batch: 4,
    },
    Case {
        depth: 64,
        width: 512,
        gelu: true,
        batch: 256,
    },
];

impl Case {
    fn name(&self) -> String {
        let activation = if self.gelu { " + GELU" } else { "" };
        format!(
            "{} x Linear {}{activation}, batch {}",
            self.depth, self.width, self.batch
        )
    }

    /// The plain loop, segments, and what `optimal` finds for equal stages in half of the plain run's activations.
    fn schedules(&self) -> Vec<(String, Schedule)> {
        let mut schedules = vec![(
            "none".into(),
            planner::none(self.depth).expect("there are stages"),
        )];
        schedules.extend([2, 32].map(|segments| {
            let schedule = planner::uniform(self.depth, segments).expect("in range");
            (format!("{segments} segments"), schedule)
        }));
        let stage = Stage {
            forward_s: Seconds(1.0),
            backward_s: Seconds(2.0),
            output_bytes: Bytes(1),
            saved_bytes: Bytes(if self.gelu { 2 } else { 1 }),
            ..Stage::default()
        };
        let chain = Chain {
            input_bytes: Bytes(1),
            input_grad: false,
            fixed_bytes: Bytes(0),
            stages: vec![stage; self.depth],
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        };
        let plain = simulate(&chain, &schedules[0].1).expect("valid").peak;
        let request = PlanRequest {
            planner: PlannerKind::Optimal,
            slots: 100,
            ..PlanRequest::within(Bytes(plain.0 / 2))
        };
        let optimal = plan(&chain, &request).expect("half is enough").schedule;
        schedules.push(("optimal, half the bytes".into(), optimal));
        schedules
    }
}

#[derive(Module, Debug)]
struct Block {
    linear: Linear,
    gelu: bool,
}

impl Layer for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let output = self.linear.forward(input);
        if self.gelu { gelu(output) } else { output }
    }

    fn draws_random(&self) -> bool {
        false
    }
}

fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    drop(work());
    started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of one step.
struct Row {
    case: String,
    schedule: String,
    plain: f64,
    step: f64,
    /// Of the forwards that run again.
    again: f64,
    layers: usize,
}

impl Row {
    fn own(&self) -> f64 {
        self.step - self.plain - self.again
    }
}

fn measure(case: &Case) -> Vec<Row> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let layers = (0..case.depth).map(|_| Block {
        linear: LinearConfig::new(case.width, case.width).init(&device),
        gelu: case.gelu,
    });
    let model = Sequential::new(layers.collect());
    // Parameters are lazy, and clones share them: drawn for a copy without gradients, they would have none in the model.
    drop(model.valid());
    let untracked = model.clone().no_grad();
    let input = Tensor::<2>::random([case.batch, case.width], Distribution::Default, &device);
    let loss = |output: Tensor<2>| output.powf_scalar(2.0).mean();
    let row = |(name, schedule): (String, Schedule)| {
        let again: usize = schedule.forward_counts().iter().sum::<usize>() - case.depth;
        let executor = Executor::new(schedule);
        let (mut plain, mut scheduled, mut forward) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(seconds(|| {
                let value = loss(model.forward(input.clone()));
                GradientsParams::from_grads(value.backward(), &model)
            }));
            forward.push(seconds(|| untracked.forward(input.clone())));
            scheduled.push(seconds(|| {
                executor
                    .step(&model, input.clone(), StepSeed::new(0, 0), loss)
                    .expect("the schedule fits")
            }));
        }
        Row {
            case: case.name(),
            schedule: name,
            plain: median(plain),
            step: median(scheduled),
            again: median(forward) * again as f64 / case.depth as f64,
            layers: case.depth,
        }
    };
    case.schedules().into_iter().map(row).collect()
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let rows: Vec<Row> = CASES.iter().flat_map(measure).collect();
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "case": row.case, "schedule": row.schedule, "plain_step_s": row.plain, "step_s": row.step,
                    "again_s": row.again, "own_cost_per_layer_s": row.own() / row.layers as f64,
                    "own_share_of_plain": row.own() / row.plain,
                })
            })
            .collect();
        println!("{:#}", serde_json::Value::from(rows));
        return;
    }
    println!("The executor's own cost, median of {ROUNDS} steps");
    let mut case = "";
    for row in &rows {
        if row.case != case {
            case = &row.case;
            println!("\n{case}");
            println!(
                "{:<24} {:>11} {:>11} {:>13} {:>9}",
                "schedule", "plain step", "step", "own per layer", "of plain"
            );
        }
        println!(
            "{:<24} {:>8.2} ms {:>8.2} ms {:>10.2} µs {:>+8.1}%",
            row.schedule,
            row.plain * 1e3,
            row.step * 1e3,
            row.own() / row.layers as f64 * 1e6,
            100.0 * row.own() / row.plain,
        );
    }
}
