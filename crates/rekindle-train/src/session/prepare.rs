//! Builds a job's model before it is measured.

use burn::{module::Module, tensor::Device};

use super::{Job, RunError};
use crate::{
    chunks::check_loss_chunks,
    data::{Shuffled, in_order},
    engine::{StepBatch, step_batch, to_device},
    estimate::Estimated,
    loss_scale::LossScaler,
    model::{shape::ModelShape, stage::Stage},
    settings::TrainSettings,
    train_error::TrainError,
    update::check_update,
};
use rekindle::{record::Kernels, sequential::Sequential};
use rekindle_plan::Bytes;

/// A job's model, with parameters initialised from the job's seed, and the order of its batches.
pub(crate) struct Built {
    pub(crate) model: Sequential<Stage>,
    pub(super) shape: ModelShape,
    pub(crate) batches: Shuffled,
}

impl Built {
    pub(crate) fn new(job: &Job<'_>, device: &Device) -> Result<Self, RunError> {
        check_update(job.settings)?;
        check_loss_chunks(job.settings, job.model, job.train.target())?;
        let blueprint = job.model.blueprint()?;
        let shape = blueprint.shape.clone();
        // As every loss here requires: one row of numbers, or one row for each token.
        let output = shape.output();
        if !matches!(output.dims.len(), 1 | 2) {
            return Err(TrainError::Output {
                got: output.clone(),
            }
            .into());
        }
        check_buffers(job)?;
        let batches = Shuffled::new(job.train.len(), job.settings.batch, job.settings.seed)?;
        device.seed(job.settings.seed);
        // Initial values are drawn on the device.
        let mut built = TrainError::caught(|| blueprint.build(job.settings.dtype, device))?;
        job.settings.defer_projection(&mut built);
        if job.settings.sync_batch_norm && !job.ranks.is_alone() {
            built.iter_mut().for_each(Stage::synchronise);
        }
        Ok(Self {
            model: Sequential::new(built),
            shape,
            batches,
        })
    }

    /// The batch for measuring: the rank's first part of the run's first batch.
    pub(crate) fn first_part(
        &self,
        job: &Job<'_>,
        device: &Device,
    ) -> Result<StepBatch, TrainError> {
        let samples = self.batches.step(0);
        let batch = &samples[job.part()][..job.micro_batch()];
        let batch = job.train.batch(batch);
        let scaler = LossScaler::new(job.settings);
        step_batch(batch, job.settings.dtype, &scaler, device)
    }

    /// Runs the last batch of an evaluation, with the remaining samples: fewer may use other kernels, or another thread whose
    /// scratch memory stays allocated.
    pub(super) fn evaluate_last(&self, job: &Job<'_>, device: &Device) -> Result<(), TrainError> {
        let Some(data) = job.eval else {
            return Ok(());
        };
        let mut batches = in_order(job.ranks.part(data.len()), job.micro_batch());
        if let Some(samples) = batches.next_back() {
            let device = device.clone().without_autodiff();
            let (input, targets) = to_device(data.batch(&samples), job.settings.dtype, &device)?;
            drop(targets.compared(self.model.valid().forward(input)));
        }
        Ok(())
    }
}

/// Fails if a tensor is larger than the device's limit for one buffer: allocating it can never succeed.
fn check_buffers(job: &Job<'_>) -> Result<(), RunError> {
    let Some(limit) = job.device.and_then(|device| device.largest_buffer_bytes) else {
        return Ok(());
    };
    let own = TrainSettings {
        batch: job.micro_batch() * job.settings.accumulate.max(1),
        ..job.settings.clone()
    };
    let estimated = Estimated {
        model: job.model,
        settings: &own,
        target: job.train.target(),
        ranks: job.ranks.count(),
        kernels: Kernels::Device,
        held: Bytes::ZERO,
    };
    let (tensor, is_weight, bytes) = estimated.estimate()?.largest;
    if bytes > limit {
        return Err(RunError::TensorTooLarge {
            tensor,
            is_weight,
            bytes,
            limit,
        });
    }
    Ok(())
}
