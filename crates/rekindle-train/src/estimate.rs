//! The recorded step of a described training, from shapes alone.

use burn::tensor::{DType, Device, Int, Tensor};

use super::{
    chunks::check_loss_chunks, engine::loss_of_part, loss::TargetTensor, loss_scale::LossScale,
    session::RunError, settings::TrainSettings, update::check_update,
};
use crate::{
    data::TargetKind,
    model::{
        build::{BuildError, build_shapes},
        spec::{ElementKind, ModelSpec, SampleShape},
        stage::Stage,
        stages::StagePlan,
        value::Value,
    },
};
use rekindle::{
    record::{self, Estimate},
    sequential::Sequential,
};

/// What the step that [`run`](super::session::run) records needs, for a model and a batch of any size: nothing is
/// allocated, nothing runs. `ranks` share the training, of whom one has such a batch.
///
/// # Errors
///
/// If the model's shapes do not fit, or the step cannot be recorded.
pub fn estimate(
    model: &ModelSpec,
    settings: &TrainSettings,
    target: TargetKind,
    ranks: usize,
) -> Result<Estimate, RunError> {
    check_update(settings)?;
    check_loss_chunks(settings, model)?;
    let shape = model.infer()?;
    let plan = StagePlan::new(model, &shape);
    let batch = settings.micro_batch();
    let mut failed: Option<BuildError> = None;
    let make = |device: &Device| {
        let stages = build_shapes(model, &plan, settings.dtype, device);
        let mut stages = stages.unwrap_or_else(|error| {
            failed = Some(error);
            Vec::new()
        });
        settings.defer_projection(&mut stages);
        if settings.sync_batch_norm && ranks > 1 {
            stages.iter_mut().for_each(Stage::synchronise);
        }
        let input = input(&model.input, batch, settings, device);
        let targets = targets(target, batch, &model.input, device);
        let scaled = settings.loss_scale() != LossScale::None;
        let scale = scaled.then(|| Tensor::empty([1], device));
        (Sequential::new(stages), (input, targets, scale))
    };
    let loss = loss_of_part(settings.accumulate);
    let estimate =
        record::estimate_updating(settings.update.fixed().unwrap_or_default(), make, loss);
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(estimate?),
    }
}

/// An input without values.
fn input(shape: &SampleShape, batch: usize, settings: &TrainSettings, device: &Device) -> Value {
    let floats = shape.kind == ElementKind::Float;
    let dtype: DType = settings.dtype.float().into();
    match (shape.dims.as_slice(), floats) {
        (&[a], true) => Tensor::<2>::empty([batch, a], (device, dtype)).into(),
        (&[a, b], true) => Tensor::<3>::empty([batch, a, b], (device, dtype)).into(),
        (&[a, b, c, ..], true) => Tensor::<4>::empty([batch, a, b, c], (device, dtype)).into(),
        (&[a, b], false) => Tensor::<3, Int>::empty([batch, a, b], device).into(),
        (&[a, b, c, ..], false) => Tensor::<4, Int>::empty([batch, a, b, c], device).into(),
        (&[a], false) => Tensor::<2, Int>::empty([batch, a], device).into(),
        (&[], _) => Tensor::<2>::empty([batch, 1], (device, dtype)).into(),
    }
}

fn targets(kind: TargetKind, batch: usize, input: &SampleShape, device: &Device) -> TargetTensor {
    match kind {
        TargetKind::Classes(_) => TargetTensor::Classes(Tensor::empty([batch], device)),
        TargetKind::TokenClasses(_) => {
            let tokens: usize = input.dims.iter().product();
            TargetTensor::Classes(Tensor::empty([batch * tokens], device))
        }
        TargetKind::Values(width) => TargetTensor::Values(Tensor::empty([batch, width], device)),
    }
}
