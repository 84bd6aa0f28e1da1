//! burn-train's learner with a checkpointed model: `TrainStep::step` gives it the executor's gradients, and metrics,
//! their files, snapshots, learning rates and validation are burn-train's own.
//!
//! `cargo run --release --example learner --features learner`

use std::path::Path;

use burn::{
    backend::{Autodiff, Flex},
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    module::Module,
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    optim::AdamConfig,
    record::CompactRecorder,
    tensor::{Int, Tensor, TensorData, activation::gelu, backend::Backend},
};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearnerSummary, SupervisedTraining, TrainOutput,
    TrainStep,
    metric::{AccuracyMetric, LossMetric, MetricDefinition},
    renderer::{
        EvaluationName, EvaluationProgress, MetricState, MetricsRenderer,
        MetricsRendererEvaluation, MetricsRendererTraining, ProgressType, TrainingProgress,
    },
};
use rekindle::{CheckpointBackend, Layer, Sequential, checkpoint_sequential};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const WIDTH: usize = 64;
const DEPTH: usize = 24;
const CLASSES: usize = 4;
const BATCH: usize = 512;
const BATCHES: usize = 12;
const EPOCHS: usize = 2;

#[derive(Module, Debug)]
struct Block<B: Backend> {
    linear: Linear<B>,
}

impl<B: Backend> Layer<B> for Block<B> {
    type Input = Tensor<B, 2>;
    type Output = Tensor<B, 2>;

    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        input.clone() + gelu(self.linear.forward(input)) * 0.3
    }

    fn draws_random(&self) -> bool {
        false
    }
}

/// The logits are the first features of the last block.
#[derive(Module, Debug)]
struct Classifier<B: Backend> {
    blocks: Sequential<Block<B>>,
    /// In how many segments a training step runs.
    segments: usize,
}

/// Points, and the class of each.
#[derive(Clone, Debug)]
struct Points<B: Backend> {
    points: Tensor<B, 2>,
    classes: Tensor<B, 1, Int>,
}

fn logits<B: Backend>(output: Tensor<B, 2>) -> Tensor<B, 2> {
    output.narrow(1, 0, CLASSES)
}

impl<B: CheckpointBackend> TrainStep for Classifier<B> {
    type Input = Points<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Points<B>) -> TrainOutput<ClassificationOutput<B>> {
        let classes = batch.classes.clone();
        let cross_entropy = CrossEntropyLossConfig::new().init(&batch.points.device());
        let output = checkpoint_sequential(&self.blocks, self.segments, batch.points, |output| {
            let logits = logits(output);
            (cross_entropy.forward(logits.clone(), classes), logits)
        });
        match output {
            Ok(output) => TrainOutput {
                grads: output.gradients,
                item: ClassificationOutput::new(
                    Tensor::from_inner(output.loss),
                    output.extra,
                    batch.classes,
                ),
            },
            Err(error) => unreachable!("there are as many blocks as segments: {error}"),
        }
    }
}

impl<B: Backend> InferenceStep for Classifier<B> {
    type Input = Points<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Points<B>) -> ClassificationOutput<B> {
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

impl<B: Backend> Batcher<B, Item, Points<B>> for PointBatcher {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> Points<B> {
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
    fn render_train(&mut self, _progress: TrainingProgress, _indicators: Vec<ProgressType>) {}
    fn render_valid(&mut self, _progress: TrainingProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for Quiet {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
    fn render_test(&mut self, _progress: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Quiet {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _definition: MetricDefinition) {}
}

type B = Autodiff<Flex>;

/// Trains and gives the most bytes in use above what was there before.
fn train(segments: usize, directory: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let device = Default::default();
    B::seed(&device, 1);
    let block = |_| Block {
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
    };
    let model = Classifier::<B> {
        blocks: Sequential::new((0..DEPTH).map(block).collect()),
        segments,
    };
    println!("{} parameters, {segments} segments", model.num_params());

    let training = DataLoaderBuilder::new(PointBatcher)
        .batch_size(BATCH)
        .shuffle(1)
        .build(InMemDataset::new(items(BATCH * BATCHES, 0)));
    let validation = DataLoaderBuilder::new(PointBatcher)
        .batch_size(BATCH)
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
        .with_file_checkpointer(CompactRecorder::new())
        .with_application_logger(None)
        .renderer(Quiet)
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
