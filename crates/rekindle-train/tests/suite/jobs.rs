//! Small trainings that several tests run.

use std::ops::ControlFlow;

use rekindle_train::{
    data::{
        Split, open,
        settings::{DataSettings, Source, SyntheticTarget},
    },
    record::StepRecord,
    session::{MemoryNow, Observer},
    settings::{LearningRate, OptimizerSettings, TrainSettings},
};

/// So many random vectors of `width` numbers, with classes.
pub fn vectors(width: usize, classes: usize, samples: usize) -> Split {
    let settings = DataSettings {
        source: Source::Synthetic {
            shape: vec![width],
            vocab: None,
            target: SyntheticTarget::Classes { classes },
            samples,
            seed: 3,
        },
        eval_split: 0.0,
    };
    open(&settings, 1).expect("synthetic data")
}

/// A classifier's settings, at a rate that never changes.
pub fn classifier(steps: usize, batch: usize, optimizer: OptimizerSettings) -> TrainSettings {
    TrainSettings {
        steps,
        batch,
        seed: 5,
        optimizer,
        learning_rate: LearningRate::Constant { rate: 0.1 },
        update: rekindle_train::update::UpdateChoice::After,
        ..TrainSettings::default()
    }
}

/// Keeps every step of a run.
#[derive(Default)]
pub struct Steps(pub Vec<StepRecord>);

impl Observer for Steps {
    fn stepped(&mut self, step: &StepRecord, _memory: MemoryNow) -> ControlFlow<()> {
        self.0.push(step.clone());
        ControlFlow::Continue(())
    }
}
