//! Measures a chain: the bytes and seconds of each stage, one stage at a time.
//!
//! Every figure is a difference of meter readings around one operation, in the terms of [`Chain`]. Only one stage's
//! graph exists at any moment, so a model whose training step does not fit in memory can still be measured.
//!
//! | figure | between which readings |
//! |---|---|
//! | `output_bytes` | before an untracked forward, and after it with its output held |
//! | `forward_temp_bytes` | the forward's peak above both |
//! | `saved_bytes`, `tracked_temp_bytes` | the same of a tracked forward |
//! | `backward_temp_bytes` | the backward's peak above what it started from, its input's gradient and its parameters' gradients |
//! | times | medians, queued work included |
//!
//! Stages with equal keys are measured once. Layers are measured on copies that share the parameters and have
//! statistics of their own, so measuring changes nothing. On GPU backends the first run of each operation compiles
//! and tunes kernels; it is a warm-up and is not counted.

mod measured;

use std::{collections::HashMap, time::Instant};

use burn::{
    module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{
        Bool, Int, Tensor,
        backend::{AutodiffBackend, Backend},
    },
};
use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, Seconds, Stage, StageId};

pub use measured::Measured;

use crate::{
    activation::{Activation, ActivationMapper, ActivationVisitor},
    backend::CheckpointBackend,
    executor::StepLoss,
    graph::{self, Upstream, detached, leaf},
    layer::Layer,
    meter::Meter,
    seed::StepSeed,
    sequential::Sequential,
    train::{
        optimizer::AnyOptimizer,
        settings::{Clip, OptimizerSettings},
    },
};

/// Fewest and most runs of each operation; the first is a warm-up. Between them, as many as fit into
/// [`SECONDS_FOR_RUNS`]: kernels that run on several threads peak a little differently each time, and the highest
/// counts.
const RUNS: (usize, usize) = (4, 16);

/// Time for the runs of one stage, beyond the fewest.
const SECONDS_FOR_RUNS: f64 = 0.3;

/// What a backward's own tables take for each graph node of its piece, until it is over.
///
/// A stage's own backward shows only its own share; those of the other stages in one piece add up. Seen on the CPU:
/// 150 to 250 bytes.
const TABLE_BYTES_PER_NODE: u64 = 256;

/// What the executor's own tables take.
const EXECUTOR_BYTES: u64 = 4096;

/// Share by which temporary bytes are rounded up. Kernels that run on several threads hold one scratch buffer for
/// each thread that happens to be busy, so the same operation peaks a little differently from run to run.
const SCRATCH_MARGIN: f64 = 1.0 / 16.0;

/// What the profiler cannot see from a stage alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageLabel {
    /// Shown in tables.
    pub name: String,
    /// Stages with equal keys cost the same.
    pub key: String,
}

/// How to measure.
pub struct Profiler<'a, B: AutodiffBackend> {
    /// Where the model is.
    pub device: &'a B::Device,
    /// Reads its memory.
    pub meter: &'a dyn Meter,
    /// The optimizer whose step is measured.
    pub optimizer: OptimizerSettings,
    /// How gradients are clipped before that step.
    pub clip: Option<Clip>,
}

impl<B: CheckpointBackend> Profiler<'_, B> {
    /// Measures every stage of `model` on `input`, the loss on its output, and the optimizer's step on every stage.
    ///
    /// The chain's fixed bytes hold only the executor's own tables: parameters and data belong to the run, which adds
    /// them. `progress` is told the number of stages done.
    pub fn chain<L, A, R, F>(
        &self,
        model: &Sequential<L>,
        labels: &[StageLabel],
        input: &A,
        loss: F,
        mut progress: impl FnMut(usize),
    ) -> Measured
    where
        A: Activation<B>,
        L: Layer<B, Input = A, Output = A> + AutodiffModule<B>,
        R: StepLoss<B>,
        F: Fn(A) -> R,
    {
        let seed = StepSeed::new(0, 0);
        let mut known: HashMap<&str, (Stage, OptimizerCost, Holds)> = HashMap::new();
        let mut holds = Vec::with_capacity(model.len());
        let mut stages = Vec::with_capacity(model.len());
        let mut optimizer = OptimizerCost::default();
        let mut activation = detached::<B, A>(input.clone());
        for (index, (layer, label)) in model.layers().iter().zip(labels).enumerate() {
            let reseed = || {
                if layer.draws_random() {
                    B::seed(self.device, seed.stage(StageId(index)));
                }
            };
            let copy = || L::from_inner(layer.valid());
            let (mut stage, step, held) = match known.get(label.key.as_str()) {
                Some(costs) => costs.clone(),
                None => {
                    let (stage, holds_output) = self.stage(&copy, &activation, index > 0, &reseed);
                    let holds = Holds {
                        input: index == 0 || self.holds_input(&copy(), &activation, &reseed),
                        output: holds_output,
                    };
                    let costs = (stage, self.optimizer_step(&copy()), holds);
                    known.insert(&label.key, costs.clone());
                    costs
                }
            };
            stage.name.clone_from(&label.name);
            stages.push(stage);
            holds.push(held);
            optimizer.step_s += step.step_s;
            optimizer.state_bytes += step.state_bytes;
            optimizer.temp_bytes = optimizer.temp_bytes.max(step.temp_bytes);
            reseed();
            activation = detached::<B, A>(copy().no_grad().forward(activation));
            progress(index + 1);
        }
        let fleeting_output = (0..holds.len())
            .map(|stage| {
                // The last output is held for the loss.
                let next_holds = holds.get(stage + 1).is_none_or(|next| next.input);
                !holds[stage].output && !next_holds
            })
            .collect();
        let chain = Chain {
            input_bytes: Bytes(value_bytes::<B, A>(input)),
            input_grad: false,
            fixed_bytes: Bytes(EXECUTOR_BYTES),
            stages,
            loss: self.loss(&activation, &loss),
            optimizer,
        };
        Measured {
            chain,
            fleeting_output,
        }
    }
}

/// What a stage's graph holds on to.
#[derive(Debug, Clone, Copy)]
struct Holds {
    input: bool,
    output: bool,
}

/// Bytes that an operation left behind, its peak above them, the peak itself, and the time.
#[derive(Default)]
struct Cost {
    kept: u64,
    temp: u64,
    peak: u64,
    seconds: f64,
}

fn measure<T>(meter: &dyn Meter, operation: impl FnOnce() -> T) -> (T, Cost) {
    let before = meter.read().in_use_bytes.0;
    meter.start_interval();
    let started = Instant::now();
    let result = operation();
    let after = meter.read();
    let seconds = started.elapsed().as_secs_f64();
    let kept = after.in_use_bytes.0.saturating_sub(before);
    let peak = after.peak_in_use_bytes.0;
    let temp = peak.saturating_sub(before + kept);
    let cost = Cost {
        kept,
        temp,
        peak,
        seconds,
    };
    (result, cost)
}

impl<B: CheckpointBackend> Profiler<'_, B> {
    /// What one stage costs, and whether its own graph holds its output.
    fn stage<L, A>(
        &self,
        copy: &dyn Fn() -> L,
        input: &A,
        wants_input_gradient: bool,
        reseed: &dyn Fn(),
    ) -> (Stage, bool)
    where
        A: Activation<B>,
        L: Layer<B, Input = A, Output = A> + AutodiffModule<B>,
    {
        let meter = self.meter;
        let (param_bytes, grad_bytes) = parameter_bytes::<B, L>(&copy());
        let (mut untracked, mut tracked, mut backward) = (Vec::new(), Vec::new(), Vec::new());
        let mut holds_output = false;
        let started = Instant::now();
        while wants_another_run(untracked.len(), started) {
            let layer = copy().no_grad();
            reseed();
            let (output, cost) = measure(meter, || layer.forward(input.clone()));
            drop(output);
            untracked.push(cost);

            let layer = copy();
            let start = if wants_input_gradient {
                leaf::<B, A>(input.clone())
            } else {
                input.clone()
            };
            reseed();
            let nodes = graph::node_counter();
            let (output, mut cost) = measure(meter, || layer.forward(start.clone()));
            let nodes = graph::node_counter() - nodes;
            cost.kept += nodes * TABLE_BYTES_PER_NODE;
            tracked.push(cost);

            let upstream = Upstream::<B>::ones(&output);
            let mut gradients = GradientsParams::new();
            let before = meter.read().in_use_bytes.0;
            let output_bytes = upstream.bytes();
            let (input_gradient, mut cost) = measure(meter, || {
                let root = upstream.seed(output);
                // The seed has let go of the output; whoever still holds it is the graph.
                let freed = before.saturating_sub(meter.read().in_use_bytes.0);
                holds_output = freed < output_bytes / 2;
                root.map(|root| {
                    let mut grads = graph::sweep::<B>(root);
                    graph::collect(&layer, &mut grads, &mut gradients);
                    Upstream::<B>::take(&start, &mut grads)
                })
            });
            // The simulator itself adds what a backward leaves: the gradients of the input and of the parameters.
            let leaves = input_gradient.as_ref().map_or(0, Upstream::bytes) + grad_bytes;
            cost.temp = cost.peak.saturating_sub(before + leaves);
            backward.push(cost);
        }
        let (untracked, tracked, backward) =
            (summary(&untracked), summary(&tracked), summary(&backward));
        let stage = Stage {
            name: String::new(),
            forward_s: Seconds(untracked.seconds),
            backward_s: Seconds(backward.seconds),
            output_bytes: Bytes(untracked.kept),
            saved_bytes: Bytes(tracked.kept.max(untracked.kept)),
            forward_temp_bytes: Bytes(untracked.temp),
            tracked_temp_bytes: Bytes(tracked.temp),
            backward_temp_bytes: Bytes(backward.temp),
            param_bytes: Bytes(param_bytes),
            grad_bytes: Bytes(grad_bytes),
            alternatives: Vec::new(),
        };
        (stage, holds_output)
    }

    /// Whether a stage's graph holds its input.
    fn holds_input<L, A>(&self, layer: &L, input: &A, reseed: &dyn Fn()) -> bool
    where
        A: Activation<B>,
        L: Layer<B, Input = A, Output = A> + AutodiffModule<B>,
    {
        // A copy with buffers of its own, so that letting go of it shows.
        let own = leaf::<B, A>(input.clone().map(&mut DeepCopy));
        reseed();
        let output = layer.forward(own.clone());
        let before = self.meter.read().in_use_bytes.0;
        drop(own);
        let freed = before.saturating_sub(self.meter.read().in_use_bytes.0);
        // A graph is only let go by a backward through it.
        if let Some(root) = Upstream::<B>::ones(&output).seed(output) {
            drop(graph::sweep::<B>(root));
        }
        freed < value_bytes::<B, A>(input) / 2
    }

    /// The loss keeps nothing in the chain's terms, so whatever its graph holds counts as temporary.
    fn loss<A, R, F>(&self, output: &A, loss: &F) -> LossCost
    where
        A: Activation<B>,
        R: StepLoss<B>,
        F: Fn(A) -> R,
    {
        let meter = self.meter;
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let started = Instant::now();
        while wants_another_run(forward.len(), started) {
            let start = leaf::<B, A>(output.clone());
            let base = meter.read().in_use_bytes.0;
            let (value, mut cost) = measure(meter, || loss(start.clone()).split());
            cost.temp += cost.kept;
            forward.push(cost);
            let (gradient, mut cost) = measure(meter, || {
                let mut grads = graph::sweep::<B>(graph::root_of(value.0));
                Upstream::<B>::take(&start, &mut grads)
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

    /// One stage's share of the optimizer's step, on a copy with parameters of its own.
    fn optimizer_step<L: AutodiffModule<B>>(&self, layer: &L) -> OptimizerCost {
        let (_, grad_bytes) = parameter_bytes::<B, L>(layer);
        if grad_bytes == 0 {
            return OptimizerCost::default();
        }
        let meter = self.meter;
        let mut layer = Module::map(layer.clone(), &mut DeepCopy);
        let mut optimizer = AnyOptimizer::<B, L>::new(self.optimizer, self.clip);
        let (mut costs, mut state_bytes) = (Vec::new(), 0);
        for run in 0..RUNS.0 {
            let gradients = unit_gradients::<B, L>(&layer);
            let before = meter.read().in_use_bytes.0;
            let (updated, mut cost) = measure(meter, || optimizer.step(0.0, layer, gradients));
            layer = updated;
            cost.temp = cost.peak.saturating_sub(before);
            let after = meter.read().in_use_bytes.0;
            if run == 0 {
                // State came, gradients went, parameters were replaced.
                state_bytes = (after + grad_bytes).saturating_sub(before);
            }
            costs.push(cost);
        }
        let costs = summary(&costs);
        OptimizerCost {
            step_s: Seconds(costs.seconds),
            temp_bytes: Bytes(costs.temp),
            state_bytes: Bytes(state_bytes),
        }
    }
}

fn wants_another_run(done: usize, started: Instant) -> bool {
    done < RUNS.0 || (done < RUNS.1 && started.elapsed().as_secs_f64() < SECONDS_FOR_RUNS)
}

/// Kept and temporary bytes and the median time of all runs but the warm-up.
///
/// What is kept does not vary; a run that seems to keep more is one in which a thread allocated scratch for good, so
/// the least counts. Temporary bytes do vary, and the most counts.
fn summary(runs: &[Cost]) -> Cost {
    let counted = runs.get(1..).unwrap_or_default();
    let mut seconds: Vec<f64> = counted.iter().map(|cost| cost.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    Cost {
        kept: counted.iter().map(|cost| cost.kept).min().unwrap_or(0),
        temp: with_margin(counted.iter().map(|cost| cost.temp).max().unwrap_or(0)),
        peak: counted.iter().map(|cost| cost.peak).max().unwrap_or(0),
        seconds: seconds.get(seconds.len() / 2).copied().unwrap_or(0.0),
    }
}

fn with_margin(temp: u64) -> u64 {
    temp + (temp as f64 * SCRATCH_MARGIN).ceil() as u64
}

/// Bytes of all float tensors of a module, and of those that want a gradient.
fn parameter_bytes<B: AutodiffBackend, M: Module<B>>(module: &M) -> (u64, u64) {
    struct Count {
        all: u64,
        trainable: u64,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let tensor = param.val();
            let bytes = (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
            self.all += bytes;
            if tensor.is_require_grad() {
                self.trainable += bytes;
            }
        }
    }
    let mut count = Count {
        all: 0,
        trainable: 0,
    };
    module.visit(&mut count);
    (count.all, count.trainable)
}

/// Bytes of all tensors of an activation.
fn value_bytes<B: Backend, A: Activation<B>>(activation: &A) -> u64 {
    struct Count(u64);
    impl<B: Backend> ActivationVisitor<B> for Count {
        fn float<const D: usize>(&mut self, tensor: &Tensor<B, D>) {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
        fn int<const D: usize>(&mut self, tensor: &Tensor<B, D, Int>) {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
        fn bool<const D: usize>(&mut self, tensor: &Tensor<B, D, Bool>) {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
    }
    let mut count = Count(0);
    activation.visit(&mut count);
    count.0
}

/// Gives every float tensor a buffer of its own.
struct DeepCopy;

impl<B: AutodiffBackend> ActivationMapper<B> for DeepCopy {
    fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D> {
        Tensor::from_inner(tensor.inner() * 1.0)
    }
}

impl<B: AutodiffBackend> ModuleMapper<B> for DeepCopy {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| {
            let wants_gradient = tensor.is_require_grad();
            Tensor::from_inner(tensor.inner() * 1.0).set_require_grad(wants_gradient)
        })
    }
}

/// A gradient of ones for every parameter that wants one.
fn unit_gradients<B: AutodiffBackend, M: Module<B>>(module: &M) -> GradientsParams {
    struct Fill(GradientsParams);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Fill {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let tensor = param.val();
            if tensor.is_require_grad() {
                let ones = Tensor::<B::InnerBackend, D>::ones(tensor.dims(), &tensor.device());
                self.0.register::<B::InnerBackend, D>(param.id, ones);
            }
        }
    }
    let mut fill = Fill(GradientsParams::new());
    module.visit(&mut fill);
    fill.0
}
