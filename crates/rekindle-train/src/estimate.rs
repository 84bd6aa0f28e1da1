//! The recorded step of a described training, from shapes alone.

use burn::tensor::{DType, Device, Int, Tensor};
use rekindle_plan::{Bytes, OptimizerCost, Seconds};

use super::{
    chunks::check_loss_chunks, engine::loss_of_part, loss::TargetTensor, loss_scale::LossScale,
    session::RunError, settings::TrainSettings, snapshot, update::check_update,
};
use crate::{
    data::{TargetKind, ahead::held_bytes},
    device::DeviceId,
    model::{
        spec::{ElementKind, ModelSpec, SampleShape},
        stage::Stage,
        value::Value,
    },
};
use rekindle::{
    dtype::Dtype,
    record::{self, Assumed, Estimate, Kernels},
    sequential::Sequential,
};

/// Bytes per second that the nominal machine reads or writes.
const NOMINAL_BYTES: f64 = 10e9;

/// Bytes that the program holds on the host for each stage: its layer, its name, its place in plans. Observed.
const STAGE_BYTES: u64 = 1_400;

/// The kernels of a device.
#[must_use]
pub fn kernels(device: DeviceId) -> Kernels {
    match device {
        #[cfg(feature = "flex")]
        DeviceId::Cpu => Kernels::host(),
        _ => Kernels::Device,
    }
}

/// A training step that is estimated.
#[derive(Debug, Clone, Copy)]
pub struct Estimated<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Batch, optimizer, loss.
    pub settings: &'a TrainSettings,
    /// The kind of target.
    pub target: TargetKind,
    /// Number of ranks that share the training, each with such a batch.
    pub ranks: usize,
    /// The kernels that compute.
    pub kernels: Kernels,
    /// Bytes held besides the training.
    pub held: Bytes,
}

impl Estimated<'_> {
    /// Estimates the step that [`run`](super::session::run) records, for a model and a batch of any size: nothing is
    /// allocated, nothing runs.
    ///
    /// # Errors
    ///
    /// If the model's shapes do not fit, or the step cannot be recorded.
    pub fn estimate(&self) -> Result<Estimate, RunError> {
        let Self {
            model,
            settings,
            target,
            ranks,
            kernels,
            held,
        } = *self;
        check_update(settings)?;
        check_loss_chunks(settings, model, target)?;
        let blueprint = model.blueprint()?;
        let accumulated = settings.accumulated_bytes(blueprint.shape.param_count());
        let of_stages = Bytes(STAGE_BYTES * blueprint.shape.stages.len() as u64);
        let batch = settings.micro_batch();
        let make = |device: &Device| {
            let mut stages = blueprint.build_shapes(settings.dtype, device);
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
        // On the processor all of the host's memory counts: the next batch, which waits there, and what stages take.
        let on_host = match kernels {
            Kernels::Device => Bytes::ZERO,
            Kernels::Host { .. } => held_bytes(&model.input, target, batch) + of_stages,
        };
        let assumed = Assumed {
            update: settings.update.fixed().unwrap_or_default(),
            kernels,
            optimizer: &|numbers| update_cost(settings, numbers),
            between: &|parameters, largest| {
                let on_host = matches!(kernels, Kernels::Host { .. });
                snapshot::taken_bytes(settings, parameters, largest, on_host, ranks > 1)
            },
            held: held + accumulated + on_host,
        };
        let loss = loss_of_part(settings.parts());
        Ok(record::estimate(assumed, make, loss)?)
    }
}

/// The cost of updating a parameter with this many numbers; parameters are updated one after another.
fn update_cost(settings: &TrainSettings, numbers: u64) -> OptimizerCost {
    let decays = settings.decay() > 0.0;
    let works_on_copy = settings.moments() > 0 || decays || settings.clip_norm.is_some();
    let copies = match (settings.dtype, settings.keeps_master_weights()) {
        (Dtype::F32, _) => u64::from(works_on_copy),
        // The gradient in `f32`, and without master weights the parameter.
        (_, true) => 1,
        (_, false) => 2,
    };
    let bytes = numbers.saturating_mul(Dtype::F32.bytes());
    let passes = 3 + 2 * settings.moments();
    OptimizerCost {
        step_s: Seconds((passes * bytes) as f64 / NOMINAL_BYTES),
        temp_bytes: Bytes(copies * bytes),
        state_bytes: settings.state_bytes(numbers),
    }
}

/// An input without values.
fn input(shape: &SampleShape, batch: usize, settings: &TrainSettings, device: &Device) -> Value {
    let dtype: DType = settings.dtype.float().into();
    match (shape.kind, shape.dims.as_slice()) {
        (ElementKind::Float, &[a, b]) => Tensor::<3>::empty([batch, a, b], (device, dtype)).into(),
        (ElementKind::Float, &[a, b, c]) => {
            Tensor::<4>::empty([batch, a, b, c], (device, dtype)).into()
        }
        (ElementKind::Float, dims) => {
            Tensor::<2>::empty([batch, dims.iter().product()], (device, dtype)).into()
        }
        (ElementKind::Token, dims) => {
            Tensor::<2, Int>::empty([batch, dims.iter().product()], device).into()
        }
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
