//! Measures the costs of one stage, the loss and the optimizer.

use std::time::Instant;

use burn::{module::Module, optim::GradientsParams};
use rekindle_plan::{Alternative, Bytes, LossCost, OptimizerCost, Seconds, Stage};

use super::{
    measured::OutputHold,
    measurement::{Cost, RUNS, summary, wants_another_run},
    profiler::Profiler,
    tensors::{Parameters, unit_gradients, value_bytes},
};
use crate::{
    balanced,
    executor::copies::fresh,
    graph::{self, Upstream, leaf},
    graph_ops::node_counter,
    layer::Layer,
    quiet,
    record::Optimizer,
    step_result::StepResult,
    tensor_tree::TensorTree,
};

/// Bytes per graph node of a piece in the tables of its backward pass, until it is over.
///
/// Measuring one stage's backward pass shows only that stage's share; in a piece of several stages the shares add up.
/// Observed on the CPU: 150 to 250 bytes.
const TABLE_BYTES_PER_NODE: u64 = 256;

/// Overhead of an output outside of a graph, besides its values.
const OUTPUT_TABLE_BYTES: u64 = 512;

/// Overhead of burn's optimizer state per parameter and per moment, besides the numbers. An optimizer of a single stage
/// takes more, for the first entries of its tables.
const STATE_BYTES_PER_PARAMETER: u64 = 384;
const STATE_BYTES_PER_MOMENT: u64 = 256;

/// Minimum share of the saved bytes that an alternative must save to be offered.
const WORTHWHILE: f64 = 0.01;

/// How a stage's graph is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Default,
    Balanced,
}

/// A stage to measure.
pub(super) struct ProfiledStage<'a, L> {
    /// Makes a copy that shares the stage's parameters and has separate statistics.
    pub(super) copy: &'a dyn Fn() -> L,
    /// Seeds the generator as for this stage.
    pub(super) reseed: &'a dyn Fn(),
    /// Whether the backward pass computes the gradient of the stage's input.
    pub(super) wants_input_gradient: bool,
}

/// The runs of one way to record a stage.
struct TrackedRuns {
    forward: Vec<Cost>,
    backward: Vec<Cost>,
    /// The same backward passes, with temporary bytes above the bytes in use after the output was dropped.
    released: Vec<Cost>,
    /// Whether the graph itself holds the stage's output.
    holds_output: bool,
}

impl<O: Optimizer> Profiler<'_, O> {
    /// The costs of one stage, how its output is held in each alternative, and the bytes that an untracked forward
    /// leaves besides the output: dead nodes, which are freed at the end of a backward pass.
    pub(super) fn stage<L, A>(
        &self,
        subject: &ProfiledStage<'_, L>,
        input: &A,
    ) -> (Stage, Vec<OutputHold>, Bytes)
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        let Parameters {
            bytes: param_bytes,
            trainable_bytes: grad_bytes,
            ..
        } = Parameters::of(&(subject.copy)());
        let (untracked, value_bytes) = self.untracked(subject, input);
        let default = self.tracked(subject, input, grad_bytes, Strategy::Default);
        // If a layer claims a balanced form and does not support it, burn panics: then it has no alternative.
        let balanced = (subject.copy)().has_balanced();
        let balanced = balanced
            .then(|| {
                quiet::catch_only(balanced::MISMATCH, || {
                    self.tracked(subject, input, grad_bytes, Strategy::Balanced)
                })
            })
            .flatten();
        let untracked = summary(&untracked);
        let hold = |runs: &TrackedRuns| OutputHold {
            by_own_graph: runs.holds_output,
            released_backward_temp_bytes: Bytes(summary(&runs.released).temp),
        };
        let (forward, backward) = (summary(&default.forward), summary(&default.backward));
        let alone = untracked.kept.min(value_bytes + OUTPUT_TABLE_BYTES);
        let left_bytes = Bytes(untracked.kept - alone);
        // The graph contains the output's tables, so measure the output by itself.
        let output_bytes = Bytes(alone.min(forward.kept));
        let saved = |forward: &Cost| Bytes(forward.kept).max(output_bytes);

        let saved_bytes = saved(&forward);
        let mut outputs = vec![hold(&default)];
        let mut alternatives = Vec::new();
        if let Some(balanced) = balanced {
            let forward = summary(&balanced.forward);
            let backward = summary(&balanced.backward);
            if (saved(&forward).0 as f64) < saved_bytes.0 as f64 * (1.0 - WORTHWHILE) {
                alternatives.push(Alternative {
                    name: "balanced".into(),
                    forward_s: Seconds(forward.seconds),
                    backward_s: Seconds(backward.seconds),
                    saved_bytes: saved(&forward),
                    tracked_temp_bytes: Bytes(forward.temp),
                    backward_temp_bytes: Bytes(backward.temp),
                });
                outputs.push(hold(&balanced));
            }
        }
        let stage = Stage {
            name: String::new(),
            forward_s: Seconds(untracked.seconds),
            backward_s: Seconds(backward.seconds),
            output_bytes,
            saved_bytes,
            forward_temp_bytes: Bytes(untracked.temp),
            tracked_temp_bytes: Bytes(forward.temp),
            backward_temp_bytes: Bytes(backward.temp),
            param_bytes: Bytes(param_bytes),
            grad_bytes: Bytes(grad_bytes),
            alternatives,
        };
        (stage, outputs, left_bytes)
    }

    /// The runs, and the bytes of the output's values.
    fn untracked<L, A>(&self, subject: &ProfiledStage<'_, L>, input: &A) -> (Vec<Cost>, u64)
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        let (mut costs, mut bytes) = (Vec::new(), 0);
        let started = Instant::now();
        while wants_another_run(&costs, started) {
            let forward = self.untracked_forward(&(subject.copy)());
            (subject.reseed)();
            let run = costs.len();
            let (output, cost) = self.cost_of(run, || forward(input.clone()));
            bytes = value_bytes(&output);
            drop(output);
            costs.push(cost);
        }
        (costs, bytes)
    }

    /// Runs a copy of the layer, with statistics of its own, without a graph, as the executor does.
    pub(super) fn untracked_forward<L, A>(&self, layer: &L) -> impl FnOnce(A) -> A + use<L, A, O>
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        let copy = fresh(layer).no_grad();
        move |input| graph::detached(copy.forward(input))
    }

    fn tracked<L, A>(
        &self,
        subject: &ProfiledStage<'_, L>,
        input: &A,
        grad_bytes: u64,
        way: Strategy,
    ) -> TrackedRuns
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        let meter = self.meter;
        let (mut forward, mut backward, mut released) = (Vec::new(), Vec::new(), Vec::new());
        let mut holds_output = false;
        let started = Instant::now();
        while wants_another_run(&released, started) {
            let layer = (subject.copy)();
            let start = if subject.wants_input_gradient {
                leaf(input.clone())
            } else {
                input.clone()
            };
            (subject.reseed)();
            let nodes = node_counter();
            let run = released.len();
            let (output, mut cost) = self.cost_of(run, || match way {
                Strategy::Default => layer.forward(start.clone()),
                Strategy::Balanced => balanced::run(&layer, start.clone()),
            });
            let nodes = node_counter() - nodes;
            cost.kept += nodes * TABLE_BYTES_PER_NODE;
            forward.push(cost);

            let upstream = Upstream::ones(&output);
            let mut gradients = GradientsParams::new();
            let before = meter.read().in_use_bytes.0;
            let output_bytes = upstream.bytes();
            let mut freed = 0;
            let (input_gradient, mut cost) = self.cost_of(run, || {
                let root = upstream.seed(output);
                // The seed has dropped the output; if it is still held, the graph holds it.
                freed = before.saturating_sub(meter.read().in_use_bytes.0);
                root.map(|root| {
                    let mut grads = root.backward();
                    graph::collect(&layer, &mut grads, &mut gradients);
                    Upstream::take(&start, &mut grads)
                })
            });
            // The simulator itself adds the results of a backward pass: the gradients of the input and of the
            // parameters.
            let leaves = input_gradient.as_ref().map_or(0, Upstream::bytes) + grad_bytes;
            holds_output = freed < output_bytes / 2;
            released.push(Cost {
                temp: cost.peak.saturating_sub(before - freed + leaves),
                ..Cost::default()
            });
            cost.temp = cost.peak.saturating_sub(before + leaves);
            backward.push(cost);
        }
        TrackedRuns {
            forward,
            backward,
            released,
            holds_output,
        }
    }

    /// Whether a stage's graph holds its input. Nothing else may hold the input, so that dropping it is visible to the
    /// meter.
    pub(super) fn holds_input<L, A>(&self, subject: &ProfiledStage<'_, L>, input: A) -> bool
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        let bytes = value_bytes(&input);
        let layer = (subject.copy)();
        let own = leaf(input);
        (subject.reseed)();
        let output = layer.forward(own.clone());
        let before = self.meter.read().in_use_bytes.0;
        drop(own);
        let freed = before.saturating_sub(self.meter.read().in_use_bytes.0);
        // A graph is only freed by a backward pass through it.
        if let Some(root) = Upstream::ones(&output).seed(output) {
            drop(root.backward());
        }
        freed < bytes / 2
    }

    /// Time of a backward call beyond its operations, measured on a graph with a single node.
    pub(super) fn backward_call_seconds<A: TensorTree>(&self, value: &A) -> f64 {
        let runs: Vec<Cost> = (0..RUNS.1)
            .map(|run| {
                let start = leaf(value.clone());
                let upstream = Upstream::ones(&start);
                let swept = || upstream.seed(start.clone()).map(|root| root.backward());
                self.cost_of(run, swept).1
            })
            .collect();
        summary(&runs).seconds
    }

    /// A chain has no saved bytes for the loss, so all that its graph holds counts as temporary.
    pub(super) fn loss<A, R, F>(&self, output: &A, loss: &F) -> LossCost
    where
        A: TensorTree,
        R: StepResult,
        F: Fn(A) -> R,
    {
        let meter = self.meter;
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let started = Instant::now();
        while wants_another_run(&backward, started) {
            let start = leaf(output.clone());
            let base = meter.read().in_use_bytes.0;
            let run = backward.len();
            let (value, mut cost) = self.cost_of(run, || loss(start.clone()).split());
            cost.temp += cost.kept;
            forward.push(cost);
            let (gradient, mut cost) = self.cost_of(run, || {
                let mut grads = value.0.backward();
                Upstream::take(&start, &mut grads)
            });
            cost.temp = cost.peak.saturating_sub(base + gradient.bytes());
            backward.push(cost);
        }
        let (forward, backward) = (summary(&forward), summary(&backward));
        LossCost {
            forward_s: Seconds(forward.seconds),
            backward_s: Seconds(backward.seconds),
            forward_temp_bytes: Bytes(forward.temp),
            backward_temp_bytes: Bytes(backward.temp),
        }
    }

    /// One stage's share of the optimizer's step, at a learning rate of zero: the returned layer has its original
    /// values.
    ///
    /// The layer itself is updated, as in training: a copy of a large layer might not fit beside the model.
    pub(super) fn optimizer_step<L: Module>(&self, mut layer: L) -> (L, OptimizerCost) {
        let parameters = Parameters::of(&layer);
        let grad_bytes = parameters.trainable_bytes;
        if grad_bytes == 0 {
            return (layer, OptimizerCost::default());
        }
        let meter = self.meter;
        let mut optimizer = self.optimizer.for_trial();
        let (mut costs, mut state_bytes) = (Vec::new(), 0);
        for run in 0..RUNS.0 {
            let gradients = unit_gradients(&layer);
            let before = meter.read().in_use_bytes.0;
            let (updated, mut cost) = self.cost_of(run, || optimizer.step(0.0, layer, gradients));
            layer = updated;
            cost.temp = cost.peak.saturating_sub(before);
            let after = meter.read().in_use_bytes.0;
            if run == 0 {
                // State was added, gradients were freed, parameters were replaced.
                let came = (after + grad_bytes).saturating_sub(before);
                let moments = came / grad_bytes;
                let tables = parameters.tensors
                    * (STATE_BYTES_PER_PARAMETER + moments * STATE_BYTES_PER_MOMENT);
                state_bytes = came.min(moments * grad_bytes + tables);
            }
            costs.push(cost);
        }
        let costs = summary(&costs);
        let cost = OptimizerCost {
            step_s: Seconds(costs.seconds),
            temp_bytes: Bytes(costs.temp),
            state_bytes: Bytes(state_bytes),
        };
        (layer, cost)
    }
}
