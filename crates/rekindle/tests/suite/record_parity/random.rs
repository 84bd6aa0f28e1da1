//! Random programs: operations on whatever was computed before, any value used any number of times. Recorded, planned
//! for random budgets and interpreted, they give burn's own gradients bit for bit and stay within their budgets.

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Device, Distribution, Tensor, activation},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rekindle::record::RecordError;
use rekindle_plan::{Bytes, Planner};

const PROGRAMS: u64 = 8;
const ROWS: usize = 2048;
const WIDTH: usize = 24;
const WEIGHTS: usize = 4;
/// Plans that recompute something, over all programs, at least.
const FEWEST: usize = 8;

#[derive(Module, Debug)]
struct Weights {
    all: Vec<Param<Tensor<2>>>,
}

/// One operation on values by their numbers.
#[derive(Clone, Copy)]
enum Operation {
    Product(usize, usize),
    Gelu(usize),
    Tanh(usize),
    Add(usize, usize),
    Multiply(usize, usize),
    Center(usize),
    Dropout(usize),
}

fn program(random: &mut StdRng) -> Vec<Operation> {
    let length = random.random_range(8..28);
    (0..length)
        .map(|made: usize| {
            // Value 0 is the input. Mostly recent values, now and then any: a skip.
            let mut any = || {
                let back = if random.random_bool(0.75) {
                    2
                } else {
                    made + 1
                };
                made - random.random_range(0..back.min(made + 1))
            };
            let (one, other) = (any(), any());
            match random.random_range(0..9) {
                0..3 => Operation::Product(one, random.random_range(0..WEIGHTS)),
                3 => Operation::Gelu(one),
                4 => Operation::Tanh(one),
                5 => Operation::Add(one, other),
                6 => Operation::Multiply(one, other),
                7 => Operation::Center(one),
                _ => Operation::Dropout(one),
            }
        })
        .collect()
}

fn run(program: &[Operation], weights: &Weights, input: Tensor<2>) -> Tensor<1> {
    let mut values = vec![input];
    for operation in program {
        let of = |number: usize| values[number].clone();
        let value = match *operation {
            Operation::Product(one, weight) => of(one).matmul(weights.all[weight].val()),
            Operation::Gelu(one) => activation::gelu(of(one)),
            Operation::Tanh(one) => of(one).tanh(),
            Operation::Add(one, other) => of(one) + of(other),
            Operation::Multiply(one, other) => of(one) * of(other).tanh(),
            Operation::Center(one) => of(one) - of(one).mean_dim(1),
            Operation::Dropout(one) => {
                of(one).clone() * of(one).random_like(Distribution::Bernoulli(0.8))
            }
        };
        values.push(value);
    }
    // Whatever was computed last, and one value from the middle.
    let middle = values[values.len() / 2].clone();
    let last = values.swap_remove(values.len() - 1);
    last.tanh().mean() + middle.tanh().mean()
}

fn bits(weights: &Weights, gradients: &GradientsParams) -> Vec<Option<Vec<u32>>> {
    let of = |weight: &Param<Tensor<2>>| {
        let data = gradients.get::<2>(weight.id)?.into_data();
        Some(data.iter::<f32>().map(f32::to_bits).collect())
    };
    weights.all.iter().map(of).collect()
}

#[test]
fn random_programs_have_burns_own_gradients() {
    own_process!();
    let device = Device::flex().autodiff();
    let normal =
        |shape, scale| Tensor::<2>::random(shape, Distribution::Normal(0.0, scale), &device);
    let weight = |_| Param::from_tensor(normal([WIDTH, WIDTH], 0.3));
    let weights = Weights {
        all: (0..WEIGHTS).map(weight).collect(),
    };
    let input = normal([ROWS, WIDTH], 1.0);
    let mut recomputing = 0;
    for seed in 0..PROGRAMS {
        let mut random = StdRng::seed_from_u64(seed);
        let program = program(&mut random);
        let step = |weights: &Weights, input: Tensor<2>| run(&program, weights, input);
        device.seed(seed);
        let loss = step(&weights, input.clone());
        let plain = bits(
            &weights,
            &GradientsParams::from_grads(loss.backward(), &weights),
        );
        let recorded = rekindle::record(&weights, &input, step).expect("recorded");
        let mut planned = recorded.plain().expect("planned");
        let most = planned.plan().plain_peak;
        let mut check = |planned: &rekindle::record::Step<_, _, _, _>, budget: Bytes| {
            device.seed(seed);
            let output = planned.run(&weights, input.clone()).expect("run");
            let peak = output.memory.peak_in_use_bytes;
            assert!(peak <= budget, "program {seed}: {peak} in {budget}");
            assert!(
                output.predicted_peak >= peak - Bytes(peak.0 / 500),
                "program {seed}: predicted {}, measured {peak}",
                output.predicted_peak
            );
            assert_eq!(
                bits(&weights, &output.gradients),
                plain,
                "program {seed} in {budget}"
            );
            recomputing += usize::from(planned.plan().repeated > 0);
        };
        check(&planned, Bytes::MAX);
        let smallest = match planned.set_budget(Bytes(1), Planner::Auto) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("program {seed}: {other:?}"),
        };
        for _ in 0..2 {
            let above = (most - smallest).0 as f64 * random.random::<f64>();
            let budget = smallest + Bytes(above as u64) + Bytes(1 << 16);
            planned
                .set_budget(budget, Planner::Auto)
                .expect("a budget above the smallest");
            check(&planned, budget);
        }
    }
    eprintln!("{PROGRAMS} random programs, {recomputing} plans that recompute");
    assert!(recomputing >= FEWEST, "{recomputing} plans recompute");
}
