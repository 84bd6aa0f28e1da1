//! The recorded step of a described training, from shapes alone.

use burn::tensor::{DType, Device, Int, Tensor};
use rekindle_plan::{Bytes, OptimizerCost, Seconds};

use super::{
    chunks::check_loss_chunks,
    engine::scaled_loss,
    loss::TargetTensor,
    loss_scale::LossScale,
    session::RunError,
    settings::{OptimizerKind, StateChoice, TrainSettings},
    snapshot,
    update::check_update,
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

/// Bytes that a training's process holds besides: its threads, what reports its progress. Observed.
const TRAINING_BYTES: Bytes = Bytes(64 << 10);

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
    /// Bytes that the process holds besides the training, where that and what the process takes before the first step count.
    pub process: Option<Bytes>,
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
            process,
        } = *self;
        check_update(settings)?;
        check_loss_chunks(settings, model, target)?;
        let blueprint = model.blueprint()?;
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
        let on_host = matches!(kernels, Kernels::Host { .. });
        let counted = |bytes| if on_host { bytes } else { Bytes::ZERO };
        let next = held_bytes(&model.input, target, batch);
        let of_process = process.map_or(Bytes::ZERO, |bytes| bytes + TRAINING_BYTES);
        let assumed = Assumed {
            update: settings.update.fixed().unwrap_or_default(),
            kernels,
            optimizer: &|numbers, turned| update_cost(settings, numbers, turned && on_host),
            between: &|parameters, largest| {
                let shards = ranks > 1 && settings.optimizer_state != StateChoice::Whole;
                snapshot::taken_bytes(settings, parameters, largest, on_host, shards)
            },
            held: counted(of_stages + next + of_process),
            parts: settings.parts(),
            begins: process
                .filter(|_| on_host)
                .map(|_| settings.eval_split > 0.0),
        };
        Ok(record::estimate(assumed, make, scaled_loss)?)
    }
}

/// Whether SGD computes with the gradient itself, not with a new tensor.
fn works_on_gradient(settings: &TrainSettings) -> bool {
    let changed = settings.decay() > 0.0 || settings.clip_norm.is_some();
    settings.optimizer == OptimizerKind::Sgd && settings.dtype == Dtype::F32 && !changed
}

/// The cost of updating a parameter with this many numbers; parameters are updated one after another. A `turned` gradient,
/// with exchanged dimensions in memory, is not overwritten.
fn update_cost(settings: &TrainSettings, numbers: u64, turned: bool) -> OptimizerCost {
    let once_more = u64::from(turned && works_on_gradient(settings));
    let works_on_copy = settings.moments() > 0 || !works_on_gradient(settings);
    let copies = match (settings.dtype, settings.keeps_master_weights()) {
        (Dtype::F32, _) => u64::from(works_on_copy) + once_more,
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
