//! Small trainings that several tests run.

use std::path::Path;

use rekindle_plan::Bytes;
use rekindle_train::{
    data::{Dataset, Split, TargetKind, batch::Batch, open, settings::Source},
    device::DeviceInfo,
    model::spec::SampleShape,
    record::{EvalRecord, StepRecord},
    session::Event,
    settings::{OptimizerKind, TrainSettings},
};
use serde::de::DeserializeOwned;

/// So many random vectors of `width` numbers, with classes.
pub fn vectors(width: usize, classes: usize, samples: usize) -> Split {
    let source = Source::Synthetic {
        shape: vec![width],
        vocab: None,
        target: TargetKind::Classes(classes),
        samples,
        seed: 3,
    };
    open(&source, 0.0, 1).expect("synthetic data")
}

struct Through<'a, F> {
    data: &'a dyn Dataset,
    read: F,
}

/// The data set whose batches go through `read`, with the numbers of their samples.
pub fn through<'a>(
    data: &'a dyn Dataset,
    read: impl Fn(Batch, &[usize]) -> Batch + Send + Sync + 'a,
) -> impl Dataset + 'a {
    Through { data, read }
}

impl<F: Fn(Batch, &[usize]) -> Batch + Send + Sync> Dataset for Through<'_, F> {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn sample_shape(&self) -> SampleShape {
        self.data.sample_shape()
    }

    fn target(&self) -> TargetKind {
        self.data.target()
    }

    fn identity(&self) -> serde_json::Value {
        self.data.identity()
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        (self.read)(self.data.batch(indices), indices)
    }
}

/// An optimizer, its momentum and its weight decay.
pub type Optimizer = (OptimizerKind, f64, f64);

/// A classifier's settings, at a rate that never changes.
pub fn classifier(
    steps: usize,
    batch: usize,
    (optimizer, momentum, weight_decay): Optimizer,
) -> TrainSettings {
    TrainSettings {
        steps,
        batch,
        seed: 5,
        optimizer,
        momentum,
        weight_decay: Some(weight_decay),
        learning_rate: Some(0.1),
        update: rekindle_train::settings::UpdateChoice::After,
        ..TrainSettings::default()
    }
}

/// A processor that can still give so many bytes, if any number is known.
pub fn processor(free_bytes: Option<Bytes>) -> DeviceInfo {
    DeviceInfo {
        free_bytes,
        ..DeviceInfo::default()
    }
}

/// Keeps every step of a run.
#[derive(Default)]
pub struct Steps(pub Vec<StepRecord>);

impl Steps {
    pub fn tell(&mut self, event: Event<'_>) {
        if let Event::Stepped { step, .. } = event {
            self.0.push(step.clone());
        }
    }
}

/// The steps in the history of a run's folder.
pub fn steps(folder: &Path) -> Vec<StepRecord> {
    rows(&folder.join("history.csv"))
}

/// The evaluations in a run's folder.
pub fn evaluations(folder: &Path) -> Vec<EvalRecord> {
    rows(&folder.join("evaluations.csv"))
}

fn rows<R: DeserializeOwned>(path: &Path) -> Vec<R> {
    let rows = csv::Reader::from_path(path).expect("a history");
    let rows: Result<Vec<R>, csv::Error> = rows.into_deserialize().collect();
    rows.expect("rows")
}
