//! Runs a training's steps by a recorded step and its plan.

mod largest;

use std::{cell::RefCell, rc::Rc};

use super::{
    loss::{Correct, TargetTensor},
    optimizer::AnyOptimizer,
    train_error::TrainError,
};
use crate::model::{stage::Stage, value::Value};
use burn::tensor::{Device, Tensor};
use largest::LargestNeeds;
use rekindle::{
    record::{Output, RecordError, SpanChange, Step, Update},
    seed::StepSeed,
    sequential::Sequential,
};
use rekindle_plan::{Bytes, Chain, Planner};

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

/// Runs the steps by a plan.
pub(super) struct Engine {
    step: Rc<RefCell<RecordedStep>>,
    largest: LargestNeeds,
}

impl Engine {
    /// Runs a step whose stages have the costs of `chain`.
    pub(super) fn new(step: Rc<RefCell<RecordedStep>>, chain: &Chain) -> Self {
        let largest = LargestNeeds::of(chain, &step.borrow().optimizer_cost());
        Self { step, largest }
    }

    /// When parameters are updated.
    pub(super) fn update(&self) -> Update {
        self.step.borrow().update()
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
        let part = run(&self.step.borrow())?;
        device.seed(seed.after());
        Ok(part)
    }

    /// Whether the next step is traced: memory is read after every span.
    pub(super) fn trace(&self, on: bool) {
        self.step.borrow_mut().set_watched(on);
    }

    /// The tensors that each span of the last step made and freed, and those that went with its update.
    pub(super) fn changes(&self) -> Vec<SpanChange> {
        self.step.borrow().changes()
    }

    /// Switches to the plan without recomputing.
    pub(super) fn recompute_nothing(&mut self) -> Result<(), RecordError> {
        let mut step = self.step.borrow_mut();
        step.plan_again(None, Planner::None)
    }

    /// Makes room in the pools for bytes that the caller allocates.
    pub(super) fn make_room(&self, bytes: Bytes) {
        self.step.borrow().make_room(bytes);
    }

    /// Makes room for a forward of a stage outside of a step.
    pub(super) fn make_room_for_forward(&self) {
        self.make_room(self.largest.forward);
    }

    /// Makes room for the update of a stage's parameters.
    pub(super) fn make_room_for_update(&self, first_step: bool) {
        self.make_room(match first_step {
            true => self.largest.first_update,
            false => self.largest.update,
        });
    }

    /// Memory of the first update, which allocates the optimizer's state.
    pub(super) fn first_update(&self) -> Bytes {
        let optimizer = self.step.borrow().optimizer_cost();
        optimizer.state_bytes + optimizer.temp_bytes
    }

    /// Maximum memory of one action or the update.
    pub(super) fn largest_need(&self) -> Bytes {
        self.largest.any
    }

    /// By how many bytes memory in use exceeded the plan, if the step was planned again for that reason since the last
    /// call.
    pub(super) fn take_growth(&self) -> Option<Bytes> {
        self.step.borrow().take_growth()
    }

    /// Number of times the pools were trimmed to stay within the budget.
    pub(super) fn trims(&self) -> u64 {
        self.step.borrow().trims()
    }
}
