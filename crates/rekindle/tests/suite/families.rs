//! Models of eight kinds beside plain burn loops, for five steps each, with and without a budget: loss, every gradient, and
//! every tensor of the model after each update, running statistics included, bit for bit. No peak exceeds its budget.

mod models;
mod several;

use std::hash::{DefaultHasher, Hash, Hasher};

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    tensor::{Device, Tensor},
};
use rekindle::{
    TensorTree,
    record::{RecordError, Recorded, Step},
};

const STEPS: usize = 5;
const RATE: f64 = 1e-2;

/// A kind of model.
trait Family: Module {
    type Batch: TensorTree;

    fn new(device: &Device) -> Self;

    /// The batch of a step.
    fn batch(step: usize, device: &Device) -> Self::Batch;

    fn loss(&self, batch: Self::Batch) -> Tensor<1>;
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

/// A model whose parameters exist: clones of others share what they will be.
fn made<M: Module>(new: impl Fn(&Device) -> M, device: &Device) -> M {
    device.seed(1);
    let model = new(device);
    drop(model.valid());
    model
}

/// A copy with running statistics of its own.
fn copy<M: Module>(model: &M) -> M {
    model.valid().train()
}

/// What each place of a module holds, or its gradient.
struct Bits<'a>(Option<&'a GradientsParams>, Vec<Option<u64>>);

impl ModuleVisitor for Bits<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.0 {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        self.1.push(tensor.map(bits));
    }
}

/// A hash of a tensor's bits: memory of the tests would count as growth of the process.
fn bits<const D: usize>(tensor: Tensor<D>) -> u64 {
    let data = tensor.without_autodiff().into_data();
    let mut hasher = DefaultHasher::new();
    data.as_bytes().hash(&mut hasher);
    hasher.finish()
}

/// What a training computed: for each step its loss and gradients, and the model after each update.
#[derive(PartialEq)]
struct Trained(Vec<Vec<Option<u64>>>);

impl Trained {
    fn step<M: Module>(&mut self, model: &M, loss: Tensor<1>, gradients: &GradientsParams) {
        let mut all = Bits(Some(gradients), vec![Some(bits(loss))]);
        model.visit(&mut all);
        assert!(all.1[1..].iter().any(Option::is_some), "nothing trains");
        self.0.push(all.1);
    }

    /// With pending running statistics.
    fn update<M: Module>(&mut self, model: &M) {
        let mut all = Bits(None, Vec::new());
        model.valid().visit(&mut all);
        self.0.push(all.1);
    }

    fn assert_is(&self, plain: &Self, how: &str) {
        for (place, (ours, plain)) in self.0.iter().zip(&plain.0).enumerate() {
            let other = ours
                .iter()
                .zip(plain)
                .position(|(ours, plain)| ours != plain);
            assert_eq!(other, None, "{how}: {place}th reading, its nth tensor");
        }
        assert_eq!(self.0.len(), plain.0.len());
    }
}

/// Runs a loss, or the recorded step of it.
enum Way<'a, M, I, F> {
    Plain(F),
    Recorded(&'a Step<M, I, Tensor<1>, F>),
}

impl<M, I, F> Way<'_, M, I, F>
where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1>,
{
    fn run(&self, model: &M, batch: I, trained: &mut Trained) -> GradientsParams {
        device().seed(7);
        let (loss, gradients) = match self {
            Self::Plain(loss) => {
                let loss = loss(model, batch);
                let gradients = loss.clone().backward();
                (loss, GradientsParams::from_grads(gradients, model))
            }
            Self::Recorded(step) => {
                let output = step.run(model, batch).expect("run");
                let peak = output.memory.peak_in_use_bytes;
                let budget = step.plan().budget;
                assert!(
                    budget.is_none_or(|budget| peak <= budget),
                    "{peak} of {budget:?}"
                );
                (output.loss, output.gradients)
            }
        };
        trained.step(model, loss, &gradients);
        gradients
    }
}

/// Shares of the plain step's peak.
const SHARES: [Option<&str>; 2] = [None, Some("40%")];

/// The step within a share of the plain step's peak, or within the smallest budget.
fn planned<'a, M, I, F>(
    recorded: impl Fn() -> Recorded<'a, M, I, Tensor<1>, F>,
    share: Option<&str>,
) -> Step<M, I, Tensor<1>, F>
where
    M: Module + 'a,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1>,
{
    let step = match share {
        None => recorded().plain(),
        Some(share) => match recorded().within(share) {
            Err(RecordError::Infeasible { smallest, .. }) => recorded().within(smallest),
            step => step,
        },
    };
    step.expect("planned")
}

/// Trains plain, and then within each share.
fn check<M: Family>(shares: &[Option<&str>]) {
    type Loss<M> = fn(&M, <M as Family>::Batch) -> Tensor<1>;
    let device = device();
    let train = |way: Way<M, M::Batch, Loss<M>>, mut model: M| {
        let mut trained = Trained(Vec::new());
        let mut optimizer = adam();
        device.seed(2);
        for number in 0..STEPS {
            let gradients = way.run(&model, M::batch(number, &device), &mut trained);
            model = optimizer.step(RATE, model, gradients);
            trained.update(&model);
        }
        trained
    };
    let loss: Loss<M> = M::loss;
    let original: M = made(M::new, &device);
    let plain = train(Way::Plain(loss), copy(&original));
    for share in shares {
        let model = copy(&original);
        let batch = M::batch(0, &device);
        let recorded = || {
            let recorded = rekindle::record(&model, &batch, loss).expect("recorded");
            recorded.with_optimizer(&adam())
        };
        let step = planned(recorded, *share);
        drop(batch);
        train(Way::Recorded(&step), model).assert_is(&plain, &format!("{share:?}"));
    }
}
