//! Measures a chain: the bytes and seconds of each stage, one stage at a time.
//!
//! Every figure is a difference of meter readings around one operation, in the terms of [`Chain`]. Only one stage's
//! graph exists at any moment, and nothing is copied, so a model whose training step does not fit in memory can still
//! be measured: the profile takes what the leanest schedule takes for the largest stage.
//!
//! | figure | between which readings |
//! |---|---|
//! | `output_bytes` | before an untracked forward, and after it with its output held |
//! | `forward_temp_bytes` | the forward's peak above both |
//! | `saved_bytes`, `tracked_temp_bytes` | the same of a tracked forward |
//! | `backward_temp_bytes` | the backward's peak above what it started from, its input's gradient and its parameters' gradients |
//! | an alternative's | the same with the graph recorded by burn's balanced strategy; offered where it keeps less |
//! | times | medians, queued work included; without what measuring takes, nor what a backward call takes by itself; made longer by what one pass through all stages takes longer |
//!
//! Stages with equal keys are measured once. Layers run as copies that share the parameters and have statistics of
//! their own, and the optimizer's step has a rate of zero, so measuring changes nothing. On GPU backends the first run
//! of each operation compiles and tunes kernels; it is a warm-up and is not counted.

mod measured;
pub(crate) mod measurement;
mod operations;
mod tensors;

use std::collections::HashMap;

use burn::tensor::Device;
use rekindle_plan::{Bytes, Chain, OptimizerCost, Seconds, Stage, StageId};

pub use measured::{Holds, Measured, OutputHold, with_reserve};

use crate::{
    activation::Activation,
    executor::{StepLoss, Tensors, copies::fresh, machine::dead_node_bytes},
    graph::detached,
    layer::Layer,
    meter::Meter,
    record::Optimizer,
    seed::StepSeed,
    sequential::Sequential,
};
use measurement::{GATHERED, idle_seconds, measure};
use operations::Subject;
use tensors::value_bytes;

/// What the executor's own tables take, besides a place for the activation of each stage: in all, and for each stage
/// (counts, and the shapes that recomputed outputs are compared with).
const EXECUTOR_BYTES: u64 = 4096;
const EXECUTOR_BYTES_PER_STAGE: u64 = 256;

/// The executor's tables for this many stages, the places of activations not counted.
#[must_use]
pub fn executor_bytes(stages: usize) -> Bytes {
    Bytes(EXECUTOR_BYTES + stages as u64 * EXECUTOR_BYTES_PER_STAGE)
}

/// What the profiler cannot see from a stage alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageLabel {
    /// Shown in tables.
    pub name: String,
    /// Stages with equal keys cost the same.
    pub key: String,
}

/// How to measure.
pub struct Profiler<'a, O> {
    /// Where the model is.
    pub device: &'a Device,
    /// Reads its memory.
    pub meter: &'a dyn Meter,
    /// The optimizer whose step is measured; it stays as it is.
    pub optimizer: &'a O,
}

impl<O: Optimizer> Profiler<'_, O> {
    /// Measures a stack that a program trains within a budget: every stage by itself, and as fixed bytes all that the
    /// meter counts now, besides `input`. What the program will hold later and does not hold yet (another batch, say) is to
    /// be added to `measured.chain.fixed_bytes`; the optimizer's state is in already.
    ///
    /// ```ignore
    /// let (measured, model) = profiler.measure(model, &input, |output| loss.forward(output, targets.clone()));
    /// let plan = measured.plan(&PlanRequest::within(budget))?;
    /// let executor = Executor::new(plan.schedule).planned_for(&input);
    /// ```
    pub fn measure<L, A, R, F>(
        &self,
        model: Sequential<L>,
        input: &A,
        loss: F,
    ) -> (Measured, Sequential<L>)
    where
        A: Activation,
        L: Layer<Input = A, Output = A>,
        R: StepLoss,
        F: Fn(A) -> R,
    {
        let label = |stage| StageLabel {
            name: format!("stage {stage}"),
            key: format!("{stage}"),
        };
        let (mut measured, model) = self.chain(model, label, input, loss, |_| {});
        let held = self.meter.read().in_use_bytes;
        measured.chain.fixed_bytes += Bytes(held.0.saturating_sub(measured.chain.input_bytes.0));
        (measured, model)
    }

    /// Measures every stage of `model` on `input`, the loss on its output, and the optimizer's step on every stage.
    /// The model comes back with the values it had.
    ///
    /// The chain's fixed bytes hold only the executor's own tables: parameters and data belong to the run, which adds
    /// them. `label` names the stage at a place; `progress` is told the number of stages done.
    pub fn chain<L, A, R, F>(
        &self,
        model: Sequential<L>,
        label: impl Fn(usize) -> StageLabel,
        input: &A,
        loss: F,
        mut progress: impl FnMut(usize),
    ) -> (Measured, Sequential<L>)
    where
        A: Activation,
        L: Layer<Input = A, Output = A>,
        R: StepLoss,
        F: Fn(A) -> R,
    {
        let seed = StepSeed::new(0, 0);
        // By key, and whether a gradient for the input is wanted: without one the backward is another.
        let mut known: HashMap<(String, bool), (Stage, OptimizerCost, Holds, Bytes)> =
            HashMap::new();
        let mut holds: Vec<Holds> = Vec::with_capacity(model.len());
        let mut left = Vec::with_capacity(model.len());
        let mut stages = Vec::with_capacity(model.len());
        let mut layers = Vec::with_capacity(model.len());
        let mut optimizer = OptimizerCost::default();
        // Seconds of the forwards of stages that were known already, in the one pass and where they were measured.
        let (mut in_passing, mut in_place) = (0.0, 0.0);
        let mut activation = detached(input.clone());
        // No gradient is wanted below the first stage that trains.
        let frozen = model
            .layers()
            .iter()
            .take_while(|layer| !Tensors::of(*layer).trains);
        let frozen = frozen.count();
        for (index, mut layer) in model.into_layers().into_iter().enumerate() {
            let StageLabel { name, key } = label(index);
            let wants_input_gradient = index > frozen;
            let kind = (key, wants_input_gradient);
            let draws_random = layer.draws_random();
            let reseed = || {
                if draws_random {
                    self.device.seed(seed.stage(StageId(index)));
                }
            };
            let next = |layer: &L, activation| {
                let forward = self.untracked_forward(layer);
                reseed();
                measure(self.meter, GATHERED, || forward(activation))
            };
            let (mut stage, step, held, left_bytes) = match known.get(&kind) {
                Some(costs) => {
                    let (output, cost) = next(&layer, activation);
                    activation = output;
                    in_passing += cost.seconds;
                    in_place += costs.0.forward_s.0;
                    costs.clone()
                }
                None => {
                    let subject = Subject {
                        copy: &|| fresh(&layer),
                        reseed: &reseed,
                        wants_input_gradient,
                    };
                    let (stage, outputs, left_bytes) = self.stage(&subject, &activation);
                    let (output, _) = next(&layer, activation.clone());
                    let holds = Holds {
                        input: index == 0 || self.holds_input(&subject, activation),
                        outputs,
                    };
                    activation = output;
                    let (updated, step) = self.optimizer_step(layer);
                    layer = updated;
                    let costs = (stage, step, holds, left_bytes);
                    known.insert(kind, costs.clone());
                    costs
                }
            };
            stage.name = name;
            stages.push(stage);
            left.push(left_bytes);
            holds.push(held);
            optimizer.step_s += step.step_s;
            optimizer.state_bytes += step.state_bytes;
            optimizer.temp_bytes = optimizer.temp_bytes.max(step.temp_bytes);
            layers.push(layer);
            progress(index + 1);
        }
        let places = stages.len() as u64 * size_of::<Option<A>>() as u64;
        let idle_s = idle_seconds(self.meter);
        let backward_call_s = self.backward_call_seconds(&activation);
        let chain = Chain {
            input_bytes: Bytes(value_bytes(input)),
            input_grad: false,
            fixed_bytes: executor_bytes(stages.len())
                + Bytes(places)
                + dead_node_bytes(left.into_iter()),
            stages,
            loss: self.loss(&activation, &loss),
            optimizer,
        };
        let measured = Measured {
            chain,
            holds,
            backward_call_s: Seconds((backward_call_s - idle_s).max(0.0)),
        };
        let measured = measured
            .without_overhead(idle_s)
            .slowed(slowdown(in_passing, in_place));
        (measured, Sequential::new(layers))
    }
}

/// How much slower stages are one after the other than each by itself: a stage that is measured again and again finds
/// its numbers in the processor's caches. Seen on the CPU: 1.1 to 1.2.
///
/// Where too little was run to tell, they count as equally fast; no pass is believed to be faster, or twice as slow.
fn slowdown(in_passing: f64, in_place: f64) -> f64 {
    /// Seconds of forwards below which a ratio is noise.
    const LEAST: f64 = 2e-3;
    if in_place < LEAST {
        return 1.0;
    }
    (in_passing / in_place).clamp(1.0, 2.0)
}
