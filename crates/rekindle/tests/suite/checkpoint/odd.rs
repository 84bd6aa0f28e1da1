//! Chains that nobody plans for: values that come and go, layers that do nothing, losses on more than the output,
//! steps that fail.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use crate::compare::{self, Trace, assert_same, floats, gradients_of, private_copy};
use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Int, Tensor},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rekindle::{Layer, Sequential, checkpoint::CheckpointError, checkpoint_sequential};

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

fn step(model: &Sequential<Odd>, input: &Carry) -> Trace {
    Device::flex().seed(2);
    let output = checkpoint_sequential(model, 3, input.clone(), loss).expect("honest layers");
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
        let mut layers = model(kinds.clone()).layers;
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
        for segments in 1..=depth {
            let what = format!("seed {seed}, {kinds:?}, {segments} segments");
            if tracked {
                let plain = compare::plain(&model, &input, &device, segments, loss);
                let other = compare::checkpointed(&model, &input, &device, segments, loss);
                assert_same(&what, &plain, &other, TOLERANCE);
            }
            let copy = private_copy(&model);
            let output = checkpoint_sequential(&copy, segments, input.clone(), loss);
            let gradients = output.expect("honest layers").gradients;
            assert!(tracked || gradients.is_empty(), "{what}");
        }
    }
}

/// A penalty on the parameters of all layers, those of segments that the loss is not part of among them.
#[test]
fn a_loss_may_use_the_models_parameters() {
    const DEPTH: usize = 5;
    let (model, input) = (model([Kind::Plain; DEPTH]), input(4));
    let loss = |output| {
        let weights = model.layers.iter().map(|layer| layer.linear.weight.val());
        weights.fold(loss(output), |sum, weight| {
            sum + weight.powf_scalar(2.0).sum()
        })
    };
    let plain = loss(model.forward(input.clone())).backward();
    let plain = gradients_of(0, &model, &GradientsParams::from_grads(plain, &model));
    for segments in 1..=DEPTH {
        let output = checkpoint_sequential(&model, segments, input.clone(), loss).expect("fits");
        let gradients = gradients_of(0, &model, &output.gradients);
        assert_same(
            &format!("{segments} segments"),
            &plain,
            &gradients,
            TOLERANCE,
        );
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
        let forget = || {
            for layer in &model.layers {
                layer.runs.store(0, Relaxed);
            }
        };
        let cheat = |cheats| model.layers[1].cheats.store(cheats, Relaxed);
        let first = step(&model, &input);
        let mut in_use = 0;
        for number in 0..50 {
            forget();
            cheat(cheats);
            // Of honest layers, the loss is no scalar.
            let several = |output: Carry| match cheats {
                true => loss(output),
                false => output.0[0].clone().flatten(0, 1),
            };
            let error = checkpoint_sequential(&model, 3, input.clone(), several);
            let error = error.expect_err("a fault");
            assert!(
                match cheats {
                    true => error == CheckpointError::OtherShapes { segment: 1 },
                    false => {
                        let elements = 4 * WIDTH;
                        error == CheckpointError::LossNotScalar { elements }
                    }
                },
                "{error}"
            );
            forget();
            cheat(false);
            assert_same("after an error", &first, &step(&model, &input), 0.0);
            if number == 9 {
                in_use = rekindle_alloc::in_use();
            }
        }
        let grown = rekindle_alloc::in_use().saturating_sub(in_use);
        assert!(grown <= GROWTH, "{cheats}: {grown} bytes");
    }
}
