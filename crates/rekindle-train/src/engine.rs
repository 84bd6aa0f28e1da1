//! A training's recorded step, which runs by its plan.

use super::{
    data::batch::{Batch, Numbers},
    loss::{Correct, TargetTensor},
    loss_scale::LossScaler,
    optimizer::AnyOptimizer,
    run_error::RunError,
    settings::TrainSettings,
};
use crate::model::{stage::Stage, value::Value};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rekindle::{
    dtype::Dtype,
    record::{Output, Step, Update},
    seed::StepSeed,
    sequential::Sequential,
};

/// A batch, or a part of one, as input of a step; last is the scale of its loss, if any.
pub(super) type StepBatch = (Value, TargetTensor, Option<Tensor<1>>);

/// The loss of a batch, or of a part of one, and the number of correct predictions.
pub(super) type Loss = fn(&Sequential<Stage>, StepBatch) -> (Tensor<1>, Correct);

/// A recorded step of a model that is built from a description.
pub(super) type RecordedStep = Step<Sequential<Stage>, StepBatch, (Tensor<1>, Correct), Loss>;

/// Moves a batch [to the device](to_device), as the input of a step.
pub(crate) fn step_batch(
    batch: Batch,
    dtype: Dtype,
    scaler: &LossScaler,
    device: &Device,
) -> StepBatch {
    let (input, targets) = to_device(batch, dtype, device);
    (input, targets, scaler.tensor(device))
}

/// Moves a batch to the device, its inputs in the model's type.
///
/// # Panics
///
/// If its values do not fill its shape.
pub(crate) fn to_device(batch: Batch, dtype: Dtype, device: &Device) -> (Value, TargetTensor) {
    let samples = batch.samples();
    let input = match batch.inputs {
        Numbers::Floats(numbers) => {
            Value::from_floats(numbers, &batch.shape, (device, DType::from(dtype.float())))
        }
        Numbers::Ids(ids) => Value::from_tokens(ids, &batch.shape, device),
    };
    let targets = match batch.targets {
        Numbers::Ids(classes) => {
            TargetTensor::Classes(Tensor::from_data(classes.as_slice(), device))
        }
        Numbers::Floats(values) => {
            let shape = [samples, values.len() / samples.max(1)];
            let values = TensorData::new(values, shape);
            TargetTensor::Values(Tensor::from_data(values, (device, DType::F32)))
        }
    };
    (input, targets)
}

/// What a part of a batch gives. Its loss is scaled, as its gradients are.
pub(super) type PartOutput = Output<Correct>;

/// Forward and scaled loss.
pub(super) fn scaled_loss(
    model: &Sequential<Stage>,
    (input, targets, scale): StepBatch,
) -> (Tensor<1>, Correct) {
    let (mut loss, correct) = targets.compared(model.forward(input));
    if let Some(scale) = scale {
        loss = loss * scale;
    }
    (loss, correct)
}

/// A measured training step: it can be planned any number of times, and runs by its last plan.
pub struct Engine {
    pub(super) step: RecordedStep,
    /// The model, if nothing else holds it: its parameters are in use in every plan.
    pub(super) _held: Option<Sequential<Stage>>,
}

impl Engine {
    /// An optimizer without state yet, which keeps it as the plan asks for.
    pub(crate) fn optimizer(&self, settings: &TrainSettings) -> AnyOptimizer {
        let mut optimizer = AnyOptimizer::new(settings).sharded(self.step.shards());
        optimizer.keep_on_host(self.step.state_on_host());
        optimizer
    }

    /// Runs forward, loss and backward of a part of a batch. Where the plan updates in the backward pass, the part is a whole
    /// batch, and `rate` and the optimizer update the model.
    pub(super) fn run(
        &self,
        model: &mut Sequential<Stage>,
        batch: StepBatch,
        seed: StepSeed,
        (rate, optimizer): (f64, &mut AnyOptimizer),
        device: &Device,
    ) -> Result<PartOutput, RunError> {
        device.seed(seed.segment(0));
        let part = match self.step.update() {
            Update::After => self.step.run(model, batch)?,
            Update::InBackward => self.step.run_updating(model, batch, rate, optimizer)?,
        };
        device.seed(seed.after());
        Ok(part)
    }
}
