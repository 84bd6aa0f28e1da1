//! Chains that nobody plans for: values that come and go, layers that do nothing, losses on more than the output,
//! steps that fail, steps in several threads.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use crate::{
    compare::{self, Trace, assert_same, floats, gradients_of, private_copy},
    random,
};
use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Int, Tensor},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rekindle::{Executor, Layer, Sequential, StepSeed, executor::StepError};
use rekindle_plan::planner;

const WIDTH: usize = 6;
const CHAINS: u64 = 60;

/// Sums of three terms and more in another order, relative to the largest value.
const TOLERANCE: f32 = 1e-5;

/// Values of which there are more and fewer from stage to stage, and row numbers.
type Carry = (Vec<Tensor<2>>, Option<Tensor<2>>, Tensor<1, Int>);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    /// Batch normalisation and dropout.
    Random,
    Identity,
    /// One more value.
    Push,
    /// One value less, unless it is the only one.
    Pop,
    Remember,
    Recall,
    /// Its output has nothing to do with its input.
    Constant,
    /// Nor here, but with its parameters.
    Parameters,
}

const KINDS: [Kind; 9] = [
    Kind::Plain,
    Kind::Random,
    Kind::Identity,
    Kind::Push,
    Kind::Pop,
    Kind::Remember,
    Kind::Recall,
    Kind::Constant,
    Kind::Parameters,
];

#[derive(Module, Debug)]
struct Odd {
    linear: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    #[module(skip)]
    kind: Arc<Kind>,
    #[module(skip)]
    /// Whether it gives one value more when it runs again.
    cheats: Arc<AtomicBool>,
    #[module(skip)]
    runs: Arc<AtomicUsize>,
}

impl Layer for Odd {
    type Input = Carry;
    type Output = Carry;

    fn forward(&self, (mut list, mut memory, rows): Carry) -> Carry {
        let again = self.runs.fetch_add(1, Relaxed) > 0;
        let x = list[0].clone();
        match *self.kind {
            Kind::Plain => list[0] = self.linear.forward(x).tanh(),
            Kind::Random => {
                let x = self.norm.forward(self.linear.forward(x));
                list[0] = self.dropout.forward(x.tanh());
            }
            Kind::Identity => {}
            Kind::Push => list.push(self.linear.forward(x)),
            Kind::Pop if list.len() > 1 => list[0] = x + list.remove(1),
            Kind::Pop => {}
            Kind::Remember => memory = Some(self.linear.forward(x)),
            Kind::Recall => {
                if let Some(memory) = memory.take() {
                    list[0] = x * memory.select(0, rows.clone());
                }
            }
            Kind::Constant => list = vec![x.ones_like()],
            Kind::Parameters => {
                let [count, _] = x.dims();
                let row = self.linear.weight.val().narrow(0, 0, 1);
                list = vec![row.repeat_dim(0, count)];
            }
        }
        if again && self.cheats.load(Relaxed) {
            list.push(list[0].clone());
        }
        (list, memory, rows)
    }

    fn draws_random(&self) -> bool {
        *self.kind == Kind::Random
    }
}

fn layer(kind: Kind) -> Odd {
    let device = Device::flex().autodiff();
    Odd {
        // A bias before batch normalisation has a gradient of rounding errors.
        linear: LinearConfig::new(WIDTH, WIDTH)
            .with_bias(kind != Kind::Random)
            .init(&device),
        norm: BatchNormConfig::new(WIDTH).init(&device),
        dropout: DropoutConfig::new(0.3).init(),
        kind: Arc::new(kind),
        cheats: Arc::default(),
        runs: Arc::default(),
    }
}

fn model(kinds: impl IntoIterator<Item = Kind>) -> Sequential<Odd> {
    private_copy(&Sequential::new(kinds.into_iter().map(layer).collect()))
}

fn input(rows: usize) -> Carry {
    let device = Device::flex().autodiff();
    let x = match rows {
        0 => Tensor::zeros([0, WIDTH], &device),
        _ => Tensor::random([rows, WIDTH], Distribution::Default, &device),
    };
    (
        vec![x],
        None,
        Tensor::arange(0..rows as i64, &device).flip([0]),
    )
}

fn loss((list, memory, _): Carry) -> Tensor<1> {
    let terms = list.into_iter().chain(memory);
    terms
        .map(|value| value.tanh().sum())
        .reduce(|sum, term| sum + term)
        .expect("a value")
}

fn step(executor: &Executor, model: &Sequential<Odd>, input: &Carry) -> Trace {
    let output = executor
        .step(model, input.clone(), StepSeed::new(1, 2), loss)
        .expect("the schedule fits the model");
    let mut trace = gradients_of(0, model, &output.gradients);
    trace.push(("loss".into(), floats(output.loss)));
    trace
}

#[test]
fn odd_chains_equal_the_plain_run() {
    own_process!();
    let device = Device::flex().autodiff();
    for seed in 0..CHAINS {
        let mut random = StdRng::seed_from_u64(seed);
        device.seed(seed);
        let depth = random.random_range(1..7);
        let kinds: Vec<Kind> = (0..depth)
            .map(|_| KINDS[random.random_range(0..KINDS.len())])
            .collect();
        let mut layers = model(kinds.clone()).into_layers();
        let all = random.random_bool(0.1);
        for layer in &mut layers {
            if all || random.random_bool(0.2) {
                *layer = layer.clone().no_grad();
            }
        }
        let model = Sequential::new(layers);
        // Neither batch normalisation nor `repeat_dim` takes no rows.
        let least = if kinds.contains(&Kind::Random) {
            2
        } else {
            usize::from(kinds.contains(&Kind::Parameters))
        };
        let input = input(least + random.random_range(0..3));
        let value = loss(private_copy(&model).forward(input.clone()));
        let tracked = value.is_tracked();
        let plain = tracked.then(|| compare::plain(&model, &input, &device, loss));
        for segments in 1..=depth {
            let schedules = [
                planner::uniform(depth, segments).expect("in range"),
                random::schedule(&vec![0; depth], seed * 10 + segments as u64),
            ];
            for schedule in schedules {
                let what = format!("seed {seed}, {kinds:?}, {segments} segments");
                if let Some(plain) = &plain {
                    let other = compare::scheduled(&what, &model, &input, &schedule, loss);
                    assert_same(&what, plain, &other, TOLERANCE);
                }
                model
                    .layers()
                    .iter()
                    .for_each(|layer| layer.runs.store(0, Relaxed));
                let executor = Executor::new(schedule);
                let copy = private_copy(&model);
                let output = executor.step(&copy, input.clone(), StepSeed::new(1, 2), loss);
                let gradients = output.expect("honest layers").gradients;
                assert!(tracked || gradients.is_empty(), "{what}");
            }
        }
    }
}

/// A penalty on the parameters of all stages, those of pieces that the loss is not part of among them.
#[test]
fn a_loss_may_use_the_models_parameters() {
    own_process!();
    const DEPTH: usize = 5;
    let (model, input) = (model([Kind::Plain; DEPTH]), input(4));
    let loss = |output| {
        let weights = model.layers().iter().map(|layer| layer.linear.weight.val());
        weights.fold(loss(output), |sum, weight| {
            sum + weight.powf_scalar(2.0).sum()
        })
    };
    let plain = loss(model.forward(input.clone())).backward();
    let plain = gradients_of(0, &model, &GradientsParams::from_grads(plain, &model));
    let uniform = (1..=DEPTH).map(|segments| planner::uniform(DEPTH, segments).expect("in range"));
    let random = (0..40).map(|seed| random::schedule(&[0; DEPTH], seed));
    for schedule in uniform.chain(random) {
        let what = format!("{schedule:?}");
        let output = Executor::new(schedule)
            .step(&model, input.clone(), StepSeed::new(0, 0), loss)
            .expect("the schedule fits the model");
        let gradients = gradients_of(0, &model, &output.gradients);
        assert_same(&what, &plain, &gradients, TOLERANCE);
    }
}

/// After a step that fails the next is as good as any, and nothing stays in memory.
#[test]
fn errors_leave_nothing_behind() {
    own_process!();
    /// burn's lists and the test's own may grow. In 40 steps a value and its node that stay each time take 12 KiB.
    const GROWTH: usize = 8 << 10;
    for cheats in [true, false] {
        let kinds = [
            Kind::Plain,
            Kind::Plain,
            Kind::Random,
            Kind::Plain,
            Kind::Plain,
        ];
        let (model, input) = (model(kinds), input(4));
        let executor = Executor::new(planner::uniform(5, 3).expect("in range"));
        let forget = || {
            for layer in model.layers() {
                layer.runs.store(0, Relaxed);
            }
        };
        let cheat = |cheats| model.layers()[1].cheats.store(cheats, Relaxed);
        let first = step(&executor, &model, &input);
        let mut in_use = 0;
        for number in 0..50 {
            forget();
            cheat(cheats);
            // Of honest layers, the loss is no scalar.
            let several = |output: Carry| match cheats {
                true => loss(output),
                false => output.0[0].clone().flatten(0, 1),
            };
            let error = executor.step(&model, input.clone(), StepSeed::new(1, number), several);
            let error = error.expect_err("a fault");
            assert!(
                match cheats {
                    true => matches!(error, StepError::RecomputedShape { stage: 1, .. }),
                    false => {
                        let elements = 4 * WIDTH;
                        error == StepError::LossNotScalar { elements }
                    }
                },
                "{error}"
            );
            forget();
            cheat(false);
            assert_same(
                "after an error",
                &first,
                &step(&executor, &model, &input),
                0.0,
            );
            if number == 9 {
                in_use = rekindle_alloc::in_use();
            }
        }
        let grown = rekindle_alloc::in_use().saturating_sub(in_use);
        assert!(grown <= GROWTH, "{cheats}: {grown} bytes");
    }
}

/// One generator serves the process: each stage that draws has it to itself.
#[test]
fn steps_in_two_threads_do_not_disturb_each_other() {
    own_process!();
    let kinds = [Kind::Random, Kind::Plain, Kind::Random, Kind::Random];
    let models = [(); 2].map(|()| model(kinds));
    let input = input(4);
    let run = |model| {
        let executor = Executor::new(planner::uniform(4, 3).expect("in range"));
        step(&executor, model, &input)
    };
    let alone = models.each_ref().map(run);
    std::thread::scope(|scope| {
        for (model, alone) in models.iter().zip(&alone) {
            let run = &run;
            scope.spawn(move || {
                for _ in 0..60 {
                    assert_same("beside another", alone, &run(model), 0.0);
                }
            });
        }
    });
}

/// A layer that draws, and in the middle of it runs a step of its own, as a task does that rayon gives to a waiting
/// thread.
#[derive(Module, Debug)]
struct Interrupted {
    dropout: Dropout,
    inner: Sequential<Stateless>,
    #[module(skip)]
    ended: Arc<Mutex<Option<Result<(), StepError>>>>,
}

#[derive(Module, Debug)]
struct Stateless {
    linear: Linear,
}

impl Layer for Stateless {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl Layer for Interrupted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let executor = Executor::new(planner::none(1).expect("one stage"));
        let ones = Tensor::ones([2, WIDTH], &input.device());
        let loss = |output: Tensor<2>| output.mean();
        let inner = executor.step(&self.inner, ones, StepSeed::new(1, 1), loss);
        *self.ended.lock().expect("no panic") = Some(inner.map(drop));
        self.dropout.forward(input)
    }

    fn draws_random(&self) -> bool {
        true
    }
}

#[test]
fn a_step_in_a_rayon_task_does_not_interrupt_another() {
    own_process!();
    let device = Device::flex().autodiff();
    let layer = || Stateless {
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
    };
    let ended: Arc<Mutex<Option<_>>> = Arc::default();
    let model = Sequential::new(vec![Interrupted {
        dropout: DropoutConfig::new(0.5).init(),
        inner: Sequential::new(vec![layer()]),
        ended: Arc::clone(&ended),
    }]);
    let outer = || {
        let input = Tensor::<2>::ones([2, WIDTH], &device).require_grad();
        let executor = Executor::new(planner::none(1).expect("one stage"));
        executor
            .step(&model, input, StepSeed::new(0, 0), |output| output.mean())
            .map(drop)
    };
    // A chain inside a layer is in order; the outer step has nothing that trains, so it may end either way.
    let _ = outer();
    assert_eq!(*ended.lock().expect("no panic"), Some(Ok(())));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let _ = pool.expect("a pool").install(outer);
    assert_eq!(
        *ended.lock().expect("no panic"),
        Some(Err(StepError::Interrupts))
    );
}
