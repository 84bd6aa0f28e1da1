//! A training's recorded step, which runs by its plan.

mod largest;

use super::{
    loss::{Correct, TargetTensor},
    optimizer::AnyOptimizer,
    train_error::TrainError,
};
use crate::model::{stage::Stage, value::Value};
use burn::tensor::{Device, Tensor};
pub(super) use largest::LargestNeeds;
use rekindle::{
    record::{Output, RecordError, Step},
    seed::StepSeed,
    sequential::Sequential,
};
use rekindle_plan::Bytes;

/// A batch, or a part of one, as input of a step; last is the scale of its loss, if any.
pub(super) type StepBatch = (Value, TargetTensor, Option<Tensor<1>>);

/// The loss of a part of a batch, and the number of correct predictions.
type LossOfPart = Box<dyn Fn(&Sequential<Stage>, StepBatch) -> (Tensor<1>, Correct)>;

/// A recorded step of a model that is built from a description.
pub(super) type RecordedStep = Step<Sequential<Stage>, StepBatch, (Tensor<1>, Correct), LossOfPart>;

/// What a part of a batch gives. Its loss is scaled, as its gradients are.
pub(super) type PartOutput = Output<Correct, StepBatch>;

/// Forward and loss of one of `parts` equal parts of a batch.
pub(super) fn loss_of_part(parts: usize) -> LossOfPart {
    Box::new(move |model, (input, targets, scale)| {
        loss(model.forward(input), &targets, scale, parts)
    })
}

/// The scaled loss. The losses of the parts sum to the mean loss of the whole batch.
pub(super) fn loss(
    output: Value,
    targets: &TargetTensor,
    scale: Option<Tensor<1>>,
    parts: usize,
) -> (Tensor<1>, Correct) {
    let (loss, correct) = targets.compared(output);
    let loss = match parts {
        1 => loss,
        _ => loss / parts as f64,
    };
    let loss = match scale {
        Some(scale) => loss * scale,
        None => loss,
    };
    (loss, correct)
}

/// A measured training step: it can be planned any number of times, and runs by its last plan.
pub struct Engine {
    pub(super) step: RecordedStep,
    /// Of its last plan.
    pub(super) largest: LargestNeeds,
    pub(super) param_count: u64,
    /// Names of the model's stages.
    pub(super) stages: Vec<String>,
    /// The model, if nothing else holds it: its parameters are in use in every plan.
    _held: Option<Sequential<Stage>>,
}

impl Engine {
    pub(super) fn new(step: RecordedStep, param_count: u64, stages: Vec<String>) -> Self {
        Self {
            step,
            largest: LargestNeeds::default(),
            param_count,
            stages,
            _held: None,
        }
    }

    /// The engine and its model.
    pub(super) fn holding(self, model: Sequential<Stage>) -> Self {
        Self {
            _held: Some(model),
            ..self
        }
    }

    /// Runs forward, loss and backward of a part of a batch.
    pub(super) fn run(
        &self,
        model: &Sequential<Stage>,
        batch: StepBatch,
        seed: StepSeed,
        device: &Device,
    ) -> Result<PartOutput, TrainError> {
        self.seeded(seed, device, |step| step.run(model, batch))
    }

    /// Like [`run`](Self::run), for a whole batch, with parameters updated in the backward pass.
    pub(super) fn run_updating(
        &self,
        model: &mut Sequential<Stage>,
        batch: StepBatch,
        seed: StepSeed,
        (rate, optimizer): (f64, &mut AnyOptimizer),
        device: &Device,
    ) -> Result<PartOutput, TrainError> {
        self.seeded(seed, device, |step| {
            step.run_updating(model, batch, rate, optimizer)
        })
    }

    /// Runs the step with its seed.
    fn seeded(
        &self,
        seed: StepSeed,
        device: &Device,
        run: impl FnOnce(&RecordedStep) -> Result<PartOutput, RecordError>,
    ) -> Result<PartOutput, TrainError> {
        device.seed(seed.before());
        let part = run(&self.step)?;
        device.seed(seed.after());
        Ok(part)
    }

    /// Makes room for a forward of a stage outside of a step.
    pub(super) fn make_room_for_forward(&self) {
        self.step.make_room(self.largest.forward);
    }

    /// Makes room for the update of a stage's parameters.
    pub(super) fn make_room_for_update(&self, first_step: bool) {
        self.step.make_room(match first_step {
            true => self.largest.first_update,
            false => self.largest.update,
        });
    }

    /// Memory of the first update, which allocates the optimizer's state.
    pub(super) fn first_update(&self) -> Bytes {
        let optimizer = self.step.optimizer_cost();
        optimizer.state_bytes + optimizer.temp_bytes
    }

    /// Maximum memory of one action or the update.
    pub(super) fn largest_need(&self) -> Bytes {
        self.largest.any
    }
}
