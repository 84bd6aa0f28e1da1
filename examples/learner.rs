//! burn-train's learner on a recorded step: in `TrainStep::step` one call takes the place of the backward pass. Metrics,
//! their files, learning rates and validation are burn-train's own.
//!
//! `cargo run --release --example learner --features learner`

use burn::{
    data::dataloader::{DataLoaderBuilder, batcher::Batcher},
    data::dataset::InMemDataset,
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::AdamConfig,
    prelude::*,
    tensor::activation::gelu,
};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
    metric::{AccuracyMetric, LossMetric},
};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const WIDTH: usize = 64;
const DEPTH: usize = 24;
const CLASSES: usize = 4;
const BATCH: usize = 512;

#[derive(Module, Debug)]
struct Classifier {
    layers: Vec<Linear>,
}

/// Points, and the class of each.
type Points = (Tensor<2>, Tensor<1, Int>);

impl Classifier {
    fn classify(&self, (points, classes): Points) -> ClassificationOutput {
        let block = |x: Tensor<2>, layer: &Linear| x.clone() + gelu(layer.forward(x)) * 0.3;
        let logits = self.layers.iter().fold(points, block).narrow(1, 0, CLASSES);
        let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
        let loss = cross_entropy.forward(logits.clone(), classes.clone());
        ClassificationOutput::new(loss, logits, classes)
    }
}

impl TrainStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, batch: Points) -> TrainOutput<ClassificationOutput> {
        // In the place of `TrainOutput::new(self, item.loss.backward(), item)`.
        rekindle::learner::train_output(self, batch, Self::classify, |recorded| {
            let recorded = recorded.with_optimizer(&AdamConfig::new().init());
            let step = recorded.within("60%");
            step.inspect(|step| println!("{}", step.plan()))
        })
    }
}

impl InferenceStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, batch: Points) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// Makes points on a few waves of their numbers; the wave is the class.
#[derive(Clone)]
struct Waves;

impl Batcher<i64, Points> for Waves {
    fn batch(&self, numbers: Vec<i64>, device: &Device) -> Points {
        let numbers = Tensor::<1, Int>::from_data(&numbers[..], device);
        let classes = numbers.clone() % CLASSES as i64;
        let speeds = (classes.clone() + 1).float().unsqueeze_dim::<2>(1) * 0.2;
        let shifts = (numbers * 37 % 101).float().unsqueeze_dim::<2>(1) / 16.0;
        let places = Tensor::<1, Int>::arange(0..WIDTH as i64, device).unsqueeze::<2>();
        ((places.float() * speeds + shifts).sin(), classes)
    }
}

fn main() {
    let directory = std::env::temp_dir().join(format!("learner-{}", std::process::id()));
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let layers = (0..DEPTH).map(layer).collect();
    let loader = |device: &Device, batches: usize| {
        let numbers = InMemDataset::new((0..(BATCH * batches) as i64).collect());
        let loader = DataLoaderBuilder::new(Waves).batch_size(BATCH).shuffle(1);
        loader.set_device(device.clone()).build(numbers)
    };
    let learner = Learner::new(Classifier { layers }, AdamConfig::new().init(), 1e-3);
    SupervisedTraining::new(&directory, loader(&device, 12), loader(&Device::flex(), 1))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .num_epochs(2)
        .summary()
        .launch(learner);
}
