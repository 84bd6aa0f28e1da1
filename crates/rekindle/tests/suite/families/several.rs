//! Trainings with several steps, models or parts of a batch.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::GradientsAccumulator,
    tensor::{Device, Distribution, Tensor, activation},
};

use rekindle_plan::Bytes;

use super::{RATE, SHARES, STEPS, Trained, Way, adam, copy, device, made, planned};

const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);

/// What is held beside one step: gradients of other parts, or what another step and its optimizer take.
const ANOTHER: Bytes = Bytes(128 << 10);

/// Two layers with a batch norm between them.
#[derive(Module, Debug)]
struct Network {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

impl Network {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        Self {
            first: LinearConfig::new(from, 16).init(device),
            norm: BatchNormConfig::new(16).init(device),
            last: LinearConfig::new(16, to).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.norm.forward(self.first.forward(x));
        self.last.forward(activation::leaky_relu(x, 0.2))
    }
}

#[derive(Module, Debug)]
struct Adversaries {
    generator: Network,
    discriminator: Network,
}

/// Noise and real samples.
type Samples = (Tensor<2>, Tensor<2>);

/// Real and generated samples go through the discriminator in turn, and both trainings alternate.
#[test]
fn adversaries_that_train_in_turn() {
    own_process!();
    let judge = |both: &Adversaries, (noise, real): Samples| {
        let fake = both.generator.forward(noise).detach();
        let real = both.discriminator.forward(real);
        let fake = rekindle::reused(&both.discriminator).forward(fake);
        activation::softplus(-real, 1.0).mean() + activation::softplus(fake, 1.0).mean()
    };
    let generate = |both: &Adversaries, (noise, _): Samples| {
        let fake = both.discriminator.forward(both.generator.forward(noise));
        activation::softplus(-fake, 1.0).mean()
    };
    let device = device();
    let batch = || -> Samples {
        let random = |width| Tensor::random([40, width], NORMAL, &device);
        (random(4), random(6))
    };
    let train = |judges: Way<_, _, _>, generates: Way<_, _, _>, mut both: Adversaries| {
        let mut trained = Trained(Vec::new());
        let (mut of_discriminator, mut of_generator) = (adam(), adam());
        device.seed(2);
        for _ in 0..STEPS {
            let batch = batch();
            let gradients = judges.run(&both, batch.clone(), &mut trained);
            both.discriminator = of_discriminator.step(RATE, both.discriminator, gradients);
            let gradients = generates.run(&both, batch, &mut trained);
            both.generator = of_generator.step(RATE, both.generator, gradients);
            trained.update(&both);
        }
        trained
    };
    let new = |device: &Device| Adversaries {
        generator: Network::new(4, 6, device),
        discriminator: Network::new(6, 1, device),
    };
    let original = made(new, &device);
    let plain = train(Way::Plain(judge), Way::Plain(generate), copy(&original));
    for share in SHARES {
        let (model, first) = (copy(&original), batch());
        let judges = planned(
            || {
                let recorded = rekindle::record(&model, &first, judge).expect("recorded");
                recorded.with_optimizer(&adam()).with_held(ANOTHER)
            },
            share,
        );
        let generates = planned(
            || {
                let recorded = rekindle::record(&model, &first, generate).expect("recorded");
                recorded.with_optimizer(&adam()).with_held(ANOTHER)
            },
            share,
        );
        drop(first);
        let (judges, generates) = (Way::Recorded(&judges), Way::Recorded(&generates));
        train(judges, generates, model).assert_is(&plain, &format!("{share:?}"));
    }
}

/// A teacher whose weights are a moving average of the student's.
#[test]
fn a_mean_teacher() {
    own_process!();
    #[derive(Module, Debug)]
    struct Pair {
        student: Network,
        teacher: Network,
    }
    /// Replaces the teacher's float tensors by their averages with the student's.
    struct Average(std::vec::IntoIter<Vec<f32>>);
    impl ModuleMapper for Average {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let student = self.0.next().expect("as many tensors");
            let device = tensor.device();
            let student = Tensor::<1>::from_floats(student.as_slice(), &device);
            let mixed = tensor.clone().detach() * 0.9 + student.reshape(tensor.shape()) * 0.1;
            Param::from_mapped_value(id, mixed.detach(), mapper)
        }
    }
    struct Values(Vec<Vec<f32>>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().without_autodiff().into_data();
            self.0.push(data.iter().collect());
        }
    }
    // Visitors and mappers do not see an update of statistics that is pending.
    let follow = |pair: Pair| {
        let pair = copy(&pair);
        let mut values = Values(Vec::new());
        pair.student.visit(&mut values);
        let teacher = pair.teacher.map(&mut Average(values.0.into_iter()));
        Pair { teacher, ..pair }
    };
    let loss = |pair: &Pair, (input, other): Samples| {
        let target = pair.teacher.forward(other).detach();
        (pair.student.forward(input) - target).square().mean()
    };
    let device = device();
    let batch = || -> Samples {
        let random = || Tensor::random([40, 5], NORMAL, &device);
        (random(), random())
    };
    let train = |way: Way<_, _, _>, mut pair: Pair| {
        let mut trained = Trained(Vec::new());
        let mut optimizer = adam();
        device.seed(2);
        for _ in 0..STEPS {
            let gradients = way.run(&pair, batch(), &mut trained);
            pair.student = optimizer.step(RATE, pair.student, gradients);
            pair = follow(pair);
            trained.update(&pair);
        }
        trained
    };
    let student = made(|device| Network::new(5, 3, device), &device);
    let teacher = copy(&student).no_grad();
    let original = Pair { student, teacher };
    let plain = train(Way::Plain(loss), copy(&original));
    for share in SHARES {
        let (model, first) = (copy(&original), batch());
        let recorded = || {
            let recorded = rekindle::record(&model, &first, loss).expect("recorded");
            recorded.with_optimizer(&adam())
        };
        let step = planned(recorded, share);
        drop(first);
        train(Way::Recorded(&step), model).assert_is(&plain, &format!("{share:?}"));
    }
}

/// Gradients of three parts of a batch, the last of them smaller, before each update.
#[test]
fn gradients_of_parts_add_up() {
    own_process!();
    let loss = |network: &Network, input: Tensor<2>| network.forward(input).square().mean();
    let device = device();
    let part = |rows| Tensor::random([rows, 5], NORMAL, &device);
    let train = |way: Way<_, _, _>, mut model: Network| {
        let mut trained = Trained(Vec::new());
        let mut optimizer = adam();
        device.seed(2);
        for _ in 0..STEPS {
            let mut sum = GradientsAccumulator::new();
            for rows in [40, 40, 15] {
                let gradients = way.run(&model, part(rows), &mut trained);
                sum.accumulate(&model, gradients);
            }
            model = optimizer.step(RATE, model, sum.grads());
            trained.update(&model);
        }
        trained
    };
    let original = made(|device| Network::new(5, 3, device), &device);
    let plain = train(Way::Plain(loss), copy(&original));
    for share in SHARES {
        let (model, first) = (copy(&original), part(40));
        let recorded = || {
            let recorded = rekindle::record(&model, &first, loss).expect("recorded");
            recorded.with_optimizer(&adam()).with_held(ANOTHER)
        };
        let step = planned(recorded, share);
        drop(first);
        train(Way::Recorded(&step), model).assert_is(&plain, &format!("{share:?}"));
    }
}
