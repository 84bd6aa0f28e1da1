//! Models of eleven kinds beside plain burn loops, for five steps each, with and without a budget: loss, every gradient, and
//! every tensor of the model after each update, running statistics included, bit for bit. No peak exceeds its budget.

mod models;
mod several;

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

    /// What changes in the model before a step.
    fn changed(self, _step: usize) -> Self {
        self
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

/// A model whose parameters exist: clones of others share what they will be.
fn made<M: Family>(device: &Device) -> M {
    device.seed(1);
    let model = M::new(device);
    drop(model.valid());
    model
}

/// A copy with running statistics of its own.
fn copy<M: Module>(model: &M) -> M {
    model.valid().train()
}

/// What each place of a module holds, or its gradient.
struct Bits<'a>(Option<&'a GradientsParams>, Vec<Option<Vec<u32>>>);

impl ModuleVisitor for Bits<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.0 {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        self.1.push(tensor.map(bits));
    }
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    let data = tensor.without_autodiff().into_data();
    data.iter::<f32>().map(f32::to_bits).collect()
}

/// All that a module holds, with its pending running statistics.
fn all_bits<M: Module>(model: &M) -> Vec<Option<Vec<u32>>> {
    let mut bits = Bits(None, Vec::new());
    model.valid().visit(&mut bits);
    bits.1
}

fn gradient_bits<M: Module>(model: &M, gradients: &GradientsParams) -> Vec<Option<Vec<u32>>> {
    let mut bits = Bits(Some(gradients), Vec::new());
    model.visit(&mut bits);
    bits.1
}

/// Shares of the plain step's peak.
const SHARES: [Option<&str>; 3] = [None, Some("60%"), Some("40%")];

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
            Err(RecordError::InfeasibleShare { smallest, .. }) => recorded().within(smallest),
            step => step,
        },
    };
    step.expect("planned")
}

/// Runs a step beside its plain loop and updates both models.
fn step_beside_plain<M, I, F>(
    step: &Step<M, I, Tensor<1>, F>,
    [ours, plain]: [&M; 2],
    batch: I,
    seed: u64,
    loss: impl Fn(&M, I) -> Tensor<1>,
) -> [GradientsParams; 2]
where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1>,
{
    let device = device();
    device.seed(seed);
    let expected = loss(plain, batch.clone());
    device.seed(seed);
    let output = step.run(ours, batch).expect("run");
    let peak = output.memory.peak_in_use_bytes;
    let plan = step.plan();
    assert!(
        plan.budget.is_none_or(|budget| peak <= budget),
        "{peak}: {plan}"
    );
    assert_eq!(bits(output.loss), bits(expected.clone()), "{plan}");
    let gradients = GradientsParams::from_grads(expected.backward(), plain);
    let of_plain = gradient_bits(plain, &gradients);
    assert!(of_plain.iter().any(Option::is_some));
    assert_eq!(gradient_bits(ours, &output.gradients), of_plain, "{plan}");
    [output.gradients, gradients]
}

/// Trains within each share.
fn check<M: Family>(shares: &[Option<&str>]) {
    let device = device();
    let model: M = made(&device);
    for share in shares {
        let batch = M::batch(0, &device);
        let step = planned(
            || {
                let recorded = rekindle::record(&model, &batch, M::loss).expect("recorded");
                recorded.with_optimizer(&adam())
            },
            *share,
        );
        drop(batch);
        let (mut ours, mut plain) = (copy(&model), copy(&model));
        let mut optimizers = [adam(), adam()];
        for number in 0..STEPS {
            (ours, plain) = (ours.changed(number), plain.changed(number));
            let batch = M::batch(number, &device);
            let models = [&ours, &plain];
            let [gradients, of_plain] =
                step_beside_plain(&step, models, batch, number as u64, M::loss);
            ours = optimizers[0].step(RATE, ours, gradients);
            plain = optimizers[1].step(RATE, plain, of_plain);
            assert_eq!(
                all_bits(&ours),
                all_bits(&plain),
                "{share:?}, step {number}"
            );
        }
    }
}
