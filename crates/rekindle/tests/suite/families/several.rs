//! Trainings with several steps, models or parts of a batch.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer},
    tensor::{Device, Distribution, Int, Tensor, activation},
};

use super::{
    Family, RATE, SHARES, STEPS, adam, all_bits, check, copy, device, planned, step_beside_plain,
};

const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);

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

/// Updates our model and the plain one.
fn updated<M>(
    [ours, plain]: [M; 2],
    [our, other]: &mut [ModuleOptimizer; 2],
    [of_ours, of_plain]: [GradientsParams; 2],
    update: impl Fn(M, &mut ModuleOptimizer, GradientsParams) -> M,
) -> [M; 2] {
    [update(ours, our, of_ours), update(plain, other, of_plain)]
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
    device.seed(1);
    let model = Adversaries {
        generator: Network::new(4, 6, &device),
        discriminator: Network::new(6, 1, &device),
    };
    drop(model.valid());
    let batch = || -> Samples {
        let random = |width| Tensor::random([10, width], NORMAL, &device);
        (random(4), random(6))
    };
    let first = batch();
    for share in SHARES {
        let recorded = || rekindle::record(&model, &first, judge).expect("recorded");
        let judges = planned(|| recorded().with_optimizer(&adam()), share);
        let recorded = || rekindle::record(&model, &first, generate).expect("recorded");
        let generates = planned(|| recorded().with_optimizer(&adam()), share);
        let mut models = [copy(&model), copy(&model)];
        let mut of_discriminator = [adam(), adam()];
        let mut of_generator = [adam(), adam()];
        for number in 0..STEPS {
            let batch = batch();
            let gradients = step_beside_plain(&judges, models.each_ref(), batch.clone(), 0, judge);
            models = updated(
                models,
                &mut of_discriminator,
                gradients,
                |both, optimizer, gradients| Adversaries {
                    discriminator: optimizer.step(RATE, both.discriminator, gradients),
                    ..both
                },
            );
            let gradients = step_beside_plain(&generates, models.each_ref(), batch, 0, generate);
            models = updated(
                models,
                &mut of_generator,
                gradients,
                |both, optimizer, gradients| Adversaries {
                    generator: optimizer.step(RATE, both.generator, gradients),
                    ..both
                },
            );
            let [ours, plain] = models.each_ref().map(all_bits);
            assert_eq!(ours, plain, "{share:?}, step {number}");
        }
    }
}

/// Values of actions, against those of a frozen copy that is refreshed now and then.
#[derive(Module, Debug)]
struct Agent {
    target: Linear,
    online: Linear,
}

impl Family for Agent {
    /// Observations before and after, actions, and rewards.
    type Batch = (Tensor<2>, Tensor<2>, Tensor<2, Int>, Tensor<2>);

    fn new(device: &Device) -> Self {
        let online = LinearConfig::new(6, 4).init(device);
        drop(online.valid());
        Self {
            target: online.clone().no_grad(),
            online,
        }
    }

    fn batch(step: usize, device: &Device) -> Self::Batch {
        let random = |width| Tensor::random([12, width], NORMAL, device);
        let action = |row: usize| ((row * 3 + step) % 4) as i64;
        let actions: Vec<i64> = (0..12).map(action).collect();
        let actions = Tensor::<1, Int>::from_ints(actions.as_slice(), device);
        (random(6), random(6), actions.unsqueeze_dim(1), random(1))
    }

    fn loss(&self, (before, after, actions, rewards): Self::Batch) -> Tensor<1> {
        let expected = rewards + self.target.forward(after).max_dim(1) * 0.9;
        let values = self.online.forward(before).gather(1, actions);
        (values - expected).square().mean()
    }

    fn changed(mut self, step: usize) -> Self {
        if step % 2 == 1 {
            self.target = self.online.clone().no_grad();
        }
        self
    }
}

#[test]
fn an_agent_with_a_target_network() {
    own_process!();
    // burn's optimizer gives a gradient to the first parameter of an id: the frozen one, here.
    check::<Agent>(&SHARES);
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
    let follow = |pair: Pair| {
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
    device.seed(1);
    let student = Network::new(5, 3, &device);
    drop(student.valid());
    let teacher = copy(&student).no_grad();
    let model = Pair { student, teacher };
    let batch = || -> Samples {
        let random = || Tensor::random([8, 5], NORMAL, &device);
        (random(), random())
    };
    let first = batch();
    for share in SHARES {
        let recorded = || rekindle::record(&model, &first, loss).expect("recorded");
        let step = planned(|| recorded().with_optimizer(&adam()), share);
        let mut models = [copy(&model), copy(&model)];
        let mut optimizers = [adam(), adam()];
        for number in 0..STEPS {
            let gradients = step_beside_plain(&step, models.each_ref(), batch(), 0, loss);
            models = updated(
                models,
                &mut optimizers,
                gradients,
                |pair, optimizer, gradients| {
                    follow(Pair {
                        student: optimizer.step(RATE, pair.student, gradients),
                        ..pair
                    })
                },
            );
            let [ours, plain] = models.each_ref().map(all_bits);
            assert_eq!(ours, plain, "{share:?}, step {number}");
        }
    }
}

/// Gradients of three parts of a batch, the last of them smaller, before each update.
#[test]
fn gradients_of_parts_add_up() {
    own_process!();
    let loss = |network: &Network, input: Tensor<2>| network.forward(input).square().mean();
    let device = device();
    device.seed(1);
    let model = Network::new(5, 3, &device);
    drop(model.valid());
    let part = |rows| Tensor::random([rows, 5], NORMAL, &device);
    let first = part(8);
    for share in SHARES {
        let recorded = || rekindle::record(&model, &first, loss).expect("recorded");
        let step = planned(|| recorded().with_optimizer(&adam()), share);
        let mut models = [copy(&model), copy(&model)];
        let mut optimizers = [adam(), adam()];
        for number in 0..STEPS {
            let mut sums = [GradientsAccumulator::new(), GradientsAccumulator::new()];
            for rows in [8, 8, 3] {
                let of_part = step_beside_plain(&step, models.each_ref(), part(rows), 0, loss);
                for ((sum, model), gradients) in sums.iter_mut().zip(&models).zip(of_part) {
                    sum.accumulate(model, gradients);
                }
            }
            let gradients = sums.each_mut().map(GradientsAccumulator::grads);
            models = updated(
                models,
                &mut optimizers,
                gradients,
                |model, optimizer, sum| optimizer.step(RATE, model, sum),
            );
            let [ours, plain] = models.each_ref().map(all_bits);
            assert_eq!(ours, plain, "{share:?}, step {number}");
        }
    }
}
