//! A job's model as it is built, and its step: recorded, with operations that are measured while they run.

use std::sync::Arc;

use burn::{module::Module, tensor::Device};

use super::{Event, Job, RunError, Tell, from_shapes::estimated};
use crate::{
    chunks::check_loss_chunks,
    data::{Shuffled, ahead::held_bytes, in_order},
    engine::{Engine, Loss, StepBatch, scaled_loss, step_batch, to_device},
    loss_scale::LossScaler,
    model::{shape::ModelShape, stage::Stage},
    optimizer::AnyOptimizer,
    snapshot, tensors,
    update::check_update,
};
use rekindle::{
    meter::Meter,
    record::{
        Comparison, Kernels,
        driver::{ProgramOptions, Statistics},
        measured_link, record,
    },
    sequential::Sequential,
};
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
            return Err(RunError::Refused(format!(
                "one sample of the model's output has the shape {output}, but the loss needs one row of numbers: end with \
                 a flatten and a linear layer"
            )));
        }
        check_buffers(job)?;
        let batches = Shuffled::new(job.train.len(), job.settings.batch, job.settings.seed)?;
        device.seed(job.settings.seed);
        // Initial values are drawn on the device.
        let mut built = RunError::caught(|| blueprint.build(job.settings.dtype, device))?;
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

    /// Records the step on the run's first batch and measures its operations; planning follows later. The model keeps
    /// its values.
    pub(crate) fn record(
        &self,
        job: &Job<'_>,
        device: &Device,
        meter: &Arc<dyn Meter>,
        tell: &mut Tell<'_>,
    ) -> Result<Engine, RunError> {
        let settings = job.settings;
        self.evaluate_last(job, device);
        let batch = self.first_part(job, device);
        // The next batch is built while a step runs; on a device of its own memory the host's is not counted.
        let next = match meter.read().reserved_bytes {
            None => held_bytes(
                &job.train.sample_shape(),
                job.train.target(),
                job.micro_batch(),
            ),
            Some(_) => Bytes::ZERO,
        };
        let optimizer = AnyOptimizer::new(settings);
        let recorded = record(&self.model, &batch, scaled_loss as Loss).and_then(|recorded| {
            let largest = recorded.largest_tensor();
            let link = job.host.map(|bytes| measured_link(device, bytes, largest));
            Ok((recorded, link.transpose()?))
        });
        let (recorded, link) = job.ranks.settled(recorded.map_err(RunError::from))?;
        let recorded = match job.ranks.reducer() {
            Some(reducer) => recorded.with_reducer(reducer),
            None => recorded,
        };
        let mut step = recorded
            .with_updates(&optimizer, job.updates())
            .with_link(link)
            .with_meter(Arc::clone(meter))
            .with_count(job.count)
            .with_comparison(Comparison::Never)
            .with_parts(settings.parts())
            .with_held(next + Statistics::of(&self.model).bytes())
            .with_program_options(ProgramOptions {
                elsewhere: job.planner,
                state: job.state(),
                // Only this thread of the program uses a device.
                dry_runs: true,
                between: self.saving_bytes(job, meter),
                since_start: true,
            })
            .measured(
                job.budget(),
                job.free(),
                job.schedule.wanted()?,
                &mut |done, of| tell(Event::Measuring { done, of }),
            )?;
        step.set_share(job.part().len() as f64 / settings.batch as f64);
        Ok(Engine { step, _held: None })
    }

    /// Peak memory of writing a snapshot or the weights. It counts without a folder, too, so that a budget does for the
    /// same run with one.
    fn saving_bytes(&self, job: &Job<'_>, meter: &Arc<dyn Meter>) -> Bytes {
        let parameters = tensors::list(&self.model);
        let sizes = parameters.iter().map(|one| one.shape.num_elements() as u64);
        let largest = sizes.max().unwrap_or_default();
        let on_host = meter.read().reserved_bytes.is_none();
        snapshot::taken_bytes(
            job.settings,
            parameters.len(),
            largest,
            on_host,
            job.shards(),
        )
    }

    /// The batch for measuring: the rank's first part of the run's first batch.
    pub(crate) fn first_part(&self, job: &Job<'_>, device: &Device) -> StepBatch {
        let batch = job.train.batch(&self.batches.samples(0, job.places(0)));
        let scaler = LossScaler::new(job.settings.loss_scale());
        step_batch(batch, job.settings.dtype, &scaler, device)
    }

    /// Runs the last batch of an evaluation, with the remaining samples: fewer may use other kernels, or another thread whose
    /// scratch memory stays allocated.
    fn evaluate_last(&self, job: &Job<'_>, device: &Device) {
        let Some(data) = job.eval else {
            return;
        };
        let mut batches = in_order(job.ranks.part(data.len()), job.micro_batch());
        if let Some(samples) = batches.next_back() {
            let device = device.clone().without_autodiff();
            let (input, targets) = to_device(data.batch(&samples), job.settings.dtype, &device);
            drop(targets.compared(self.model.valid().forward(input)));
        }
    }
}

/// Fails if a tensor is larger than the device's limit for one buffer: allocating it can never succeed.
fn check_buffers(job: &Job<'_>) -> Result<(), RunError> {
    let Some(limit) = job.device.and_then(|device| device.largest_buffer_bytes) else {
        return Ok(());
    };
    let update = job.settings.update.fixed().unwrap_or_default();
    let estimate = estimated(job, job.settings.batch, update, Kernels::Device, None)?;
    let (tensor, is_weight, bytes) = estimate.largest;
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
