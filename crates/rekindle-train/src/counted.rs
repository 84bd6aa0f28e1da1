//! The chain that shapes foretell: nothing is built, nothing is run.
//!
//! Bytes are those of a training step on the model's stages: outputs, what a tracked forward saves
//! ([`ModelCost`]), what passes hold for a while ([`Kernels`] says whose), gradients, the optimizer's state and
//! its largest temporary, parameters, targets. Bookkeeping is not: some kilobytes a stage, and what the process itself
//! holds, so models of a few MiB take more than is counted.
//!
//! Seconds are only good for ratios: `5e-11` for each multiply-add and `1e-10` for each byte that is read or written,
//! with a backward twice as long as its forward. Seen on two cores, up to a common factor; a GPU is faster at both.

use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, Seconds, Stage};

use crate::{
    chunks::ChunkedSizes,
    data::TargetKind,
    model::{
        cost::{Counter, ElementBytes, LayerCost, ModelCost},
        kernels::Kernels,
        passes::Passes,
        shape::{LayerShape, ModelShape},
        spec::{LayerSpec, ModelSpec},
        stages::StagePlan,
    },
    settings::{OptimizerSettings, TrainSettings},
    update::UpdateChoice,
};
use rekindle::{
    ChunkedCrossEntropy,
    dtype::Dtype,
    profile::{Holds, Measured, OutputHold, executor_bytes},
};

/// Seconds of one multiplication with its addition.
const MULTIPLY_ADD_S: f64 = 5e-11;
/// Seconds to read or write a byte.
const BYTE_S: f64 = 1e-10;

/// All that decides a training step's memory.
#[derive(Debug, Clone, Copy)]
pub struct Counted<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Its shapes, as [`ModelSpec::infer`] gives them.
    pub shape: &'a ModelShape,
    /// Batch, optimizer, clipping.
    pub settings: &'a TrainSettings,
    /// What a sample is compared with.
    pub target: TargetKind,
    /// Sizes of values.
    pub bytes: ElementBytes,
    /// Who computes.
    pub kernels: Kernels,
}

impl Counted<'_> {
    /// Counts. The answer has no alternatives, and a backward call costs nothing.
    #[must_use]
    pub fn chain(&self) -> Measured {
        let plan = StagePlan::new(self.model, self.shape);
        let batch = self.settings.micro_batch();
        let cost = ModelCost::new(self.model, self.shape, &plan, batch, self.bytes);
        let counter = Counter {
            batch: batch as u64,
            bytes: self.bytes,
        };
        let pairs: Vec<(&LayerSpec, &LayerShape)> =
            self.model.layers.iter().zip(&self.shape.layers).collect();

        let mut tracked = false;
        let mut stages = Vec::with_capacity(plan.stages.len());
        let mut holds = Vec::with_capacity(plan.stages.len());
        for (index, (planned, cost)) in plan.stages.iter().zip(&cost.stages).enumerate() {
            let layers = pairs.get(planned.layers.clone()).unwrap_or_default();
            let passes = Passes::new(counter, self.kernels, layers, tracked, cost);
            holds.push(Holds {
                input: index == 0 || passes.holds_input,
                outputs: vec![OutputHold {
                    by_own_graph: passes.holds_output,
                    released_backward_temp_bytes: Bytes(passes.released_backward_temp),
                }],
            });
            stages.push(stage(&planned.name, cost, &passes));
            tracked |= planned.param_count > 0;
        }
        let last_output = cost.stages.last().map_or(0, |stage| stage.output_bytes);
        let loss = match (self.settings.loss_chunks.cross_entropy(), stages.last_mut()) {
            (Some(loss), Some(last)) => self.chunked_loss(loss, last),
            _ => self.loss(last_output),
        };

        let of = |field: fn(&LayerCost) -> u64| Bytes(cost.stages.iter().map(field).sum());
        let params = of(|stage| stage.param_bytes);
        let statistics = of(|stage| stage.state_bytes);
        let chain = Chain {
            input_bytes: Bytes(cost.input_bytes),
            input_grad: false,
            fixed_bytes: params
                + statistics
                + self.target_bytes()
                + self.settings.accumulated_bytes(params.0 / self.bytes.float)
                + executor_bytes(stages.len())
                + Bytes(self.kernels.kept_bytes(&cost.stages)),
            loss,
            optimizer: self.optimizer(params),
            stages,
        };
        let measured = Measured {
            chain,
            holds,
            backward_call_s: Seconds(0.0),
        };
        match self.settings.update {
            UpdateChoice::Auto | UpdateChoice::After => measured,
            UpdateChoice::InBackward => measured.updated_in_backward(),
        }
    }

    /// The batch's targets.
    #[must_use]
    pub fn target_bytes(&self) -> Bytes {
        let batch = self.settings.micro_batch() as u64;
        Bytes(match self.target {
            TargetKind::Classes(_) => batch * self.bytes.token,
            TargetKind::TokenClasses(_) => batch * self.shape.input.elements() * self.bytes.token,
            TargetKind::Values(values) => batch * values as u64 * Dtype::F32.bytes(),
        })
    }

    /// Both losses make two values of each output's: shifted and exponential, or difference and square. Where the
    /// output is no `f32`, there is a copy that is.
    fn loss(&self, output: u64) -> LossCost {
        let copies = u64::from(self.settings.dtype != Dtype::F32);
        let output = output / self.bytes.float * Dtype::F32.bytes();
        LossCost {
            forward_s: seconds(0, (3 + 2 * copies) * output),
            backward_s: seconds(0, (6 + 2 * copies) * output),
            forward_temp_bytes: Bytes((2 + copies) * output),
            backward_temp_bytes: Bytes((2 + copies) * output),
        }
    }

    /// The last stage hands its input on, and the loss makes one chunk's logits at a time; beside them the gradient of the
    /// weight, and what is added to it.
    fn chunked_loss(&self, loss: ChunkedCrossEntropy, last: &mut Stage) -> LossCost {
        let Some(shape) = self.shape.layers.last() else {
            return LossCost::default();
        };
        let ChunkedSizes {
            rows,
            width,
            classes,
            at_once,
        } = ChunkedSizes::of(loss, shape, self.settings.micro_batch() as u64);
        let hidden = rows * width * self.bytes.float;
        let weight = width * classes * self.bytes.float;
        let logits = at_once * classes * Dtype::F32.bytes();
        let products = rows * width * classes;
        *last = Stage {
            forward_s: Seconds(0.0),
            backward_s: Seconds(0.0),
            output_bytes: Bytes(hidden),
            saved_bytes: Bytes(hidden),
            forward_temp_bytes: Bytes(0),
            tracked_temp_bytes: Bytes(0),
            backward_temp_bytes: Bytes(0),
            ..last.clone()
        };
        let temp = Bytes(logits + 2 * weight + hidden);
        LossCost {
            forward_s: seconds(3 * products, 10 * rows * classes * Dtype::F32.bytes()),
            backward_s: Seconds(0.0),
            forward_temp_bytes: temp,
            backward_temp_bytes: Bytes(weight),
        }
    }

    fn optimizer(&self, params: Bytes) -> OptimizerCost {
        let settings = &self.settings.optimizer;
        let decays = match settings {
            OptimizerSettings::Sgd { weight_decay, .. }
            | OptimizerSettings::Adam { weight_decay, .. }
            | OptimizerSettings::AdamW { weight_decay, .. } => *weight_decay > 0.0,
        };
        // Parameters are updated one after the other.
        let works_on_copy = settings.moments() > 0 || decays || self.settings.clip.is_some();
        let copies = match (self.settings.dtype, self.settings.keeps_master_weights()) {
            (Dtype::F32, _) => u64::from(works_on_copy),
            // The gradient in `f32`, and without master weights the parameter.
            (_, true) => 1,
            (_, false) => 2,
        };
        let largest = largest_weight(&self.model.layers, &self.shape.layers);
        let passes = 3 + 2 * settings.moments();
        OptimizerCost {
            step_s: seconds(0, passes * params.0),
            temp_bytes: Bytes(copies * Dtype::F32.bytes() * largest),
            state_bytes: self.settings.state_bytes(params.0 / self.bytes.float),
        }
    }
}

fn stage(name: &str, cost: &LayerCost, passes: &Passes) -> Stage {
    let forward = seconds(cost.multiply_adds, passes.touched);
    Stage {
        name: name.to_owned(),
        forward_s: forward,
        backward_s: forward * 2.0,
        output_bytes: Bytes(cost.output_bytes),
        saved_bytes: Bytes(cost.saved_bytes.max(cost.output_bytes)),
        forward_temp_bytes: Bytes(passes.forward_temp),
        tracked_temp_bytes: Bytes(passes.tracked_temp),
        backward_temp_bytes: Bytes(passes.backward_temp),
        param_bytes: Bytes(cost.param_bytes),
        grad_bytes: Bytes(cost.param_bytes),
        alternatives: Vec::new(),
    }
}

fn seconds(multiply_adds: u64, bytes: u64) -> Seconds {
    Seconds(multiply_adds as f64 * MULTIPLY_ADD_S + bytes as f64 * BYTE_S)
}

/// Values of the largest parameter tensor: a layer's weight without its bias.
fn largest_weight(layers: &[LayerSpec], shapes: &[LayerShape]) -> u64 {
    let weights = layers.iter().zip(shapes).map(|(spec, shape)| match spec {
        LayerSpec::Residual { layers } => largest_weight(layers, &shape.inner),
        LayerSpec::Linear { out, bias } | LayerSpec::Conv2d { out, bias, .. } => {
            shape.param_count - if *bias { *out as u64 } else { 0 }
        }
        LayerSpec::BatchNorm { .. } | LayerSpec::LayerNorm { .. } => shape.param_count / 2,
        LayerSpec::Attention { .. } => {
            let dim = shape.input.dims.last().copied().unwrap_or(0) as u64;
            dim * dim
        }
        _ => shape.param_count,
    });
    weights.max().unwrap_or(0)
}
