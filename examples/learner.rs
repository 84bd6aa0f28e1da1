//! burn-train's learner with a checkpointed model: `TrainStep::step` gives it the executor's gradients, and metrics,
//! their files, snapshots, learning rates and validation are burn-train's own.
//!
//! `cargo run --release --example learner --features learner`

use std::path::Path;

use burn::{
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    module::Module,
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::AdamConfig,
    tensor::{Device, Int, Tensor, TensorData, activation::gelu},
};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearnerSummary, SupervisedTraining, TrainOutput,
    TrainStep,
    logger::{EvaluationProgressLogger, TrainingProgressLogger},
    metric::{AccuracyMetric, LossMetric, MetricDefinition},
    renderer::{
        EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
        MetricsRendererTraining,
    },
};
use rekindle::{Layer, Sequential, checkpoint_sequential};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const WIDTH: usize = 64;
const DEPTH: usize = 24;
const CLASSES: usize = 4;
const BATCH: usize = 512;
const BATCHES: usize = 12;
const EPOCHS: usize = 2;

#[derive(Module, Debug)]
struct Block {
    linear: Linear,
}

impl Layer for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input.clone() + gelu(self.linear.forward(input)) * 0.3
    }

    fn draws_random(&self) -> bool {
        false
    }
}

/// The logits are the first features of the last block.
#[derive(Module, Debug)]
struct Classifier {
    blocks: Sequential<Block>,
    /// In how many segments a training step runs.
    segments: usize,
}

/// Points, and the class of each.
#[derive(Clone, Debug)]
struct Points {
    points: Tensor<2>,
    classes: Tensor<1, Int>,
}

fn logits(output: Tensor<2>) -> Tensor<2> {
    output.narrow(1, 0, CLASSES)
}

impl TrainStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, batch: Points) -> TrainOutput<ClassificationOutput> {
        let classes = batch.classes.clone();
        let cross_entropy = CrossEntropyLossConfig::new().init(&batch.points.device());
        let output = checkpoint_sequential(&self.blocks, self.segments, batch.points, |output| {
            let logits = logits(output);
            (cross_entropy.forward(logits.clone(), classes), logits)
        });
        match output {
            Ok(output) => TrainOutput {
                grads: output.gradients,
                item: ClassificationOutput::new(output.loss, output.extra, batch.classes),
            },
            Err(error) => unreachable!("there are as many blocks as segments: {error}"),
        }
    }
}

impl InferenceStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, batch: Points) -> ClassificationOutput {
        let logits = logits(self.blocks.forward(batch.points));
        let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
        let loss = cross_entropy.forward(logits.clone(), batch.classes.clone());
        ClassificationOutput::new(loss, logits, batch.classes)
    }
}

/// A point and its class.
type Item = ([f32; WIDTH], i64);

#[derive(Clone)]
struct PointBatcher;

impl Batcher<Item, Points> for PointBatcher {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Points {
        let (points, classes): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let rows = points.len();
        Points {
            points: Tensor::from_data(TensorData::new(points.concat(), [rows, WIDTH]), device),
            classes: Tensor::from_data(TensorData::new(classes, [rows]), device),
        }
    }
}

/// Points on a few waves; the wave is the class.
fn items(count: usize, offset: usize) -> Vec<Item> {
    let item = |index: usize| {
        let class = index % CLASSES;
        let shift = (index * 37 % 101) as f32 / 16.0;
        let wave = |place: usize| ((class + 1) as f32 * place as f32 * 0.2 + shift).sin();
        (std::array::from_fn(wave), class as i64)
    };
    (offset..offset + count).map(item).collect()
}

/// Prints nothing: the files have it all.
struct Quiet;

impl MetricsRendererTraining for Quiet {
    fn update_train(&mut self, _state: MetricState) {}
    fn update_valid(&mut self, _state: MetricState) {}
}

impl MetricsRendererEvaluation for Quiet {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl TrainingProgressLogger for Quiet {
    fn start(
        &mut self,
        _epochs: usize,
        _first: usize,
        _items: Option<usize>,
        _label: Option<&str>,
    ) {
    }
    fn update_epoch(&mut self, _epoch: usize) {}
    fn start_split(&mut self, _split: &str, _items: usize) {}
    fn update_split(&mut self, _done: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Quiet {
    fn start_global_progress(&mut self, _tests: usize) {}
    fn start_test(&mut self, _name: &str, _items: usize) {}
    fn update_test_progress(&mut self, _done: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRenderer for Quiet {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _definition: MetricDefinition) {}
}

/// Trains and gives the most bytes in use above what was there before.
fn train(segments: usize, directory: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let block = |_| Block {
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
    };
    let model = Classifier {
        blocks: Sequential::new((0..DEPTH).map(block).collect()),
        segments,
    };
    println!("{} parameters, {segments} segments", model.num_params());
    // Parameters are drawn when they are first used: not while memory is measured.
    drop(model.valid());

    let training = DataLoaderBuilder::new(PointBatcher)
        .batch_size(BATCH)
        .shuffle(1)
        .set_device(device.clone())
        .build(InMemDataset::new(items(BATCH * BATCHES, 0)));
    let validation = DataLoaderBuilder::new(PointBatcher)
        .batch_size(BATCH)
        .set_device(Device::flex())
        .build(InMemDataset::new(items(BATCH, BATCH * BATCHES)));
    let steps = EPOCHS * BATCHES;
    let learner = Learner::new(
        model,
        AdamConfig::new().init(),
        CosineAnnealingLrSchedulerConfig::new(1e-3, steps).init()?,
    );

    let start = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    let result = SupervisedTraining::new(directory, training, validation)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_default_checkpointers()
        .with_application_logger(None)
        .renderer(Box::new(Quiet))
        .num_epochs(EPOCHS)
        .launch(learner);
    let peak = rekindle_alloc::peak() - start;
    drop(result.renderer);
    println!("{}", LearnerSummary::new(directory, &["Accuracy", "Loss"])?);
    Ok(peak)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("rekindle-learner-{}", std::process::id()));
    let plain = train(1, &directory.join("1-segment"))?;
    let checkpointed = train(6, &directory.join("6-segments"))?;
    let mebibytes = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!(
        "peak: {:.1} MiB in one segment, {:.1} MiB in 6: {:.1} MiB less",
        mebibytes(plain),
        mebibytes(checkpointed),
        mebibytes(plain) - mebibytes(checkpointed),
    );
    println!("metrics and snapshots are in {}", directory.display());
    Ok(())
}
