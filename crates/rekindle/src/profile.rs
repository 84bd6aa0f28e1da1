//! Measures a chain: the bytes and seconds of each stage, one stage at a time.
//!
//! Every figure is a difference of meter readings around one operation, in the terms of [`Chain`]. Only one stage's
//! graph exists at any moment, and nothing is copied, so a model whose training step does not fit in memory can still
//! be measured: the profile needs as much memory as the smallest schedule needs for the largest stage.
//!
//! | figure | between which readings |
//! |---|---|
//! | `output_bytes` | before an untracked forward, and after it with its output held |
//! | `forward_temp_bytes` | the forward's peak above both |
//! | `saved_bytes`, `tracked_temp_bytes` | the same for a tracked forward |
//! | `backward_temp_bytes` | the backward's peak above what it started from, its input's gradient and its parameters' gradients |
//! | of an alternative | the same with the graph recorded by burn's balanced strategy; used where it keeps less |
//! | times | medians, queued work included, without the overhead of measuring and of an empty backward call |
//!
//! Layers run as copies that share the parameters and have statistics of their own, and the optimizer's step has a rate
//! of zero, so measuring changes nothing. On GPU backends the first run
//! of each operation compiles and tunes kernels; it is a warm-up and is not counted.

mod measured;
mod measurement;
mod operations;
mod profiler;
mod tensors;

use rekindle_plan::{Bytes, Chain, OptimizerCost, Seconds, StageId};

pub use measured::{Holds, Measured, OutputHold, with_reserve};
pub use profiler::Profiler;

use crate::{
    executor::{ModuleTensors, copies::fresh, machine::dead_node_bytes},
    graph::detached,
    layer::Layer,
    record::Optimizer,
    seed::StepSeed,
    sequential::Sequential,
    step_result::StepResult,
    tensor_tree::TensorTree,
};
use operations::ProfiledStage;
use tensors::value_bytes;

/// Memory of the executor's own tables, in all and per stage (counts, and the shapes that recomputed outputs are
/// compared with), without the slots for activations.
const EXECUTOR_BYTES: u64 = 4096;
const EXECUTOR_BYTES_PER_STAGE: u64 = 256;

/// Memory of the executor's tables for this many stages, without the slots for activations.
fn executor_bytes(stages: usize) -> Bytes {
    Bytes(EXECUTOR_BYTES + stages as u64 * EXECUTOR_BYTES_PER_STAGE)
}

impl<O: Optimizer> Profiler<'_, O> {
    /// Measures a stack of layers: every stage by itself on `input`, the loss on its output, and the optimizer's step
    /// on every stage. The returned model has its original values. Fixed bytes are all bytes that the meter counts at
    /// the call, except `input`. Add to `measured.chain.fixed_bytes` what the program will allocate later (for example,
    /// another batch); the optimizer's state is already included.
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
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
        R: StepResult,
        F: Fn(A) -> R,
    {
        let seed = StepSeed::new(0, 0);
        let count = model.len();
        let mut holds: Vec<Holds> = Vec::with_capacity(count);
        let mut left = Vec::with_capacity(count);
        let mut stages = Vec::with_capacity(count);
        let mut layers = Vec::with_capacity(count);
        let mut optimizer = OptimizerCost::default();
        let mut activation = detached(input.clone());
        // No gradient is needed below the first stage that trains.
        let frozen = model
            .layers()
            .iter()
            .take_while(|layer| !ModuleTensors::of(*layer).trains);
        let frozen = frozen.count();
        for (index, layer) in model.into_layers().into_iter().enumerate() {
            let draws_random = layer.draws_random();
            let reseed = || {
                if draws_random {
                    self.device.seed(seed.stage(StageId(index)));
                }
            };
            let subject = ProfiledStage {
                copy: &|| fresh(&layer),
                reseed: &reseed,
                wants_input_gradient: index > frozen,
            };
            let (mut stage, outputs, left_bytes) = self.stage(&subject, &activation);
            reseed();
            let output = self.untracked_forward(&layer)(activation.clone());
            let input = index == 0 || self.holds_input(&subject, activation);
            activation = output;
            holds.push(Holds { input, outputs });
            stage.name = format!("stage {index}");
            stages.push(stage);
            left.push(left_bytes);
            let (layer, step) = self.optimizer_step(layer);
            optimizer.step_s += step.step_s;
            optimizer.state_bytes += step.state_bytes;
            optimizer.temp_bytes = optimizer.temp_bytes.max(step.temp_bytes);
            layers.push(layer);
        }
        let places = Bytes(count as u64 * size_of::<Option<A>>() as u64);
        let idle_s = self.idle_seconds();
        let backward_call_s = self.backward_call_seconds(&activation);
        let loss = self.loss(&activation, &loss);
        drop(activation);
        let (input_bytes, held) = (value_bytes(input), self.meter.read().in_use_bytes);
        let chain = Chain {
            input_bytes: Bytes(input_bytes),
            input_grad: false,
            fixed_bytes: executor_bytes(count)
                + places
                + dead_node_bytes(left.into_iter())
                + Bytes(held.0.saturating_sub(input_bytes)),
            stages,
            loss,
            optimizer,
        };
        let measured = Measured {
            chain,
            holds,
            backward_call_s: Seconds((backward_call_s - idle_s).max(0.0)),
        };
        (measured.without_overhead(idle_s), Sequential::new(layers))
    }
}
