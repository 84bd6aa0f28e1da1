//! The state of one training step while its program runs.

use std::{borrow::Cow, ops::RangeInclusive};

use burn::{
    optim::GradientsParams,
    tensor::{Gradients, Tensor},
};
use rekindle_plan::{Action, Bytes, StageId};

use super::{
    copies::{self, ModuleTensors},
    error::StepError,
    output::StepOutput,
    program::{ModuleInstruction, ModuleProgram},
    shapes::FirstShapes,
    watch::Watch,
};
use crate::{
    balanced,
    graph::{self, Upstream, detached, leaf},
    graph_ops::node_counter,
    layer::Layer,
    meter::{Meter, Phase, PhaseRecorder},
    seed::{Drawing, StepSeed},
    step_result::StepResult,
    tensor_tree::{TensorTree, device_of},
};

/// Number of dead nodes that untracked forwards may leave before they are freed, and bytes per node. Freeing them costs
/// a backward pass and a walk over all live graphs.
const DEAD_NODES: u64 = 128;
const DEAD_NODE_BYTES: u64 = 1024;

/// Upper bound on the bytes of dead nodes, given the bytes that one untracked forward of each stage leaves.
pub(crate) fn dead_node_bytes(of_stages: impl Iterator<Item = Bytes>) -> Bytes {
    let (sum, most) = of_stages.fold((0, 0), |(sum, most), Bytes(stage)| {
        (sum + stage, stage.max(most))
    });
    Bytes(sum.min(DEAD_NODES * DEAD_NODE_BYTES + most))
}

/// Stages that were run as one graph and whose backward pass is still to come.
struct Piece<'a, A, L: Clone> {
    stages: RangeInclusive<usize>,
    /// The fresh leaf that the graph starts from.
    input: A,
    /// The graph's end. `None` once the loss has been computed on it.
    output: Option<A>,
    /// The layers whose parameters are the graph's leaves.
    layers: Vec<Cow<'a, L>>,
}

impl<A, L: Clone> Piece<'_, A, L> {
    /// Whether the piece's output is the input of `stage`.
    fn ends_at(&self, stage: usize) -> bool {
        *self.stages.end() + 1 == stage
    }
}

/// The layers of a chain, and their properties that are known before they run.
pub(super) struct Layers<'a, L> {
    pub(super) all: &'a [L],
    pub(super) tensors: Vec<ModuleTensors>,
    /// Number of leading layers that have nothing to train.
    pub(super) frozen: usize,
}

pub(super) struct Machine<'a, L: Clone, A> {
    layers: Layers<'a, L>,
    seed: StepSeed,
    phases: PhaseRecorder<'a>,
    /// `activations[i]` is the input of stage i if it is held separately; the last one is the chain's output.
    activations: Vec<Option<A>>,
    /// Pieces without a backward pass yet, in the order in which they were run. Usually the last one is first to run
    /// backward, but a schedule may record stages in any order.
    pieces: Vec<Piece<'a, A, L>>,
    /// The gradient of the activation at which the next backward pass starts.
    upstream: Option<Upstream>,
    /// The loss on the last piece's graph, until that piece's backward pass.
    loss_root: Option<Tensor<1>>,
    gradients: GradientsParams,
    forward_counts: Vec<usize>,
    /// The value of the node counter when dead nodes were last freed.
    freed_at: u64,
    watch: Option<Watch>,
    shapes: FirstShapes,
    meter: Option<&'a dyn Meter>,
}

impl<'a, L, A> Machine<'a, L, A>
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    pub(super) fn new(
        layers: Layers<'a, L>,
        input: A,
        seed: StepSeed,
        meter: Option<&'a dyn Meter>,
        watch: Option<Watch>,
        shapes: FirstShapes,
    ) -> Self {
        let count = layers.all.len();
        let mut activations: Vec<Option<A>> = (0..=count).map(|_| None).collect();
        activations[0] = Some(detached(input));
        Self {
            layers,
            seed,
            phases: PhaseRecorder::start(meter),
            activations,
            pieces: Vec::new(),
            upstream: None,
            loss_root: None,
            gradients: GradientsParams::new(),
            forward_counts: vec![0; count],
            freed_at: node_counter(),
            watch,
            shapes,
            meter,
        }
    }

    pub(super) fn run<R, F>(
        mut self,
        program: &ModuleProgram,
        loss: F,
    ) -> Result<StepOutput<R::Auxiliary>, StepError>
    where
        R: StepResult,
        F: FnOnce(A) -> R,
    {
        let mut loss = Some(loss);
        let mut result = None;
        for instruction in &program.instructions {
            match instruction {
                ModuleInstruction::Forward { stage, keep_input } => {
                    self.forward(*stage, *keep_input)?;
                }
                ModuleInstruction::Track { stages, balanced } => {
                    self.track(stages.clone(), *balanced)?;
                }
                ModuleInstruction::Backward { stages } => self.sweep(stages),
                ModuleInstruction::Loss { joins_piece } => {
                    self.phases.end(Phase::Forward);
                    if let Some(loss) = loss.take() {
                        result = Some(self.loss(*joins_piece, loss)?);
                    }
                    self.done(Action::Loss);
                    self.phases.end(Phase::Loss);
                }
            }
            self.phases.sample();
            self.check_memory()?;
        }
        self.reseed_after();
        self.phases.end(Phase::Backward);
        let Some((loss, extra)) = result else {
            unreachable!("a schedule without a loss is not a valid schedule");
        };
        Ok(StepOutput {
            loss,
            extra,
            gradients: self.gradients,
            phases: self.phases.finish(),
            forward_counts: self.forward_counts,
            trace: self.watch.map(|watch| watch.finish()).unwrap_or_default(),
        })
    }

    /// Runs one stage without a graph.
    fn forward(&mut self, stage: usize, keep_input: bool) -> Result<(), StepError> {
        let input = if keep_input {
            self.read(stage)
        } else {
            match self.activations[stage].take() {
                Some(input) => input,
                None => self.read(stage),
            }
        };
        let (detach, drawing) = self.enter_stage(stage, &input);
        let layer = copies::untracked(&self.layers.all[stage], detach);
        let output = detached(layer.forward(input));
        drop((drawing, layer));
        self.shapes.ran(stage, &output)?;
        self.free_dead_nodes(stage, &output);
        self.activations[stage + 1] = Some(output);
        self.done(Action::Forward(StageId(stage)));
        Ok(())
    }

    /// Fails if an allocation has failed, because running on would allocate still more. A backward pass is not
    /// interrupted.
    fn check_memory(&self) -> Result<(), StepError> {
        match self.meter.and_then(Meter::failure) {
            Some(failure) => Err(StepError::OutOfMemory(failure)),
            None => Ok(()),
        }
    }

    fn done(&self, action: Action) {
        if let Some(watch) = &self.watch {
            watch.done(action);
        }
    }

    /// Runs stages as one graph.
    fn track(&mut self, stages: RangeInclusive<usize>, balanced: bool) -> Result<(), StepError> {
        let first = *stages.start();
        let input = self.read(first);
        // No stage below needs the gradient of the input of the first stage that trains, so it is not computed.
        let input = if first <= self.layers.frozen {
            input
        } else {
            leaf(input)
        };
        let mut output = input.clone();
        let mut layers = Vec::with_capacity(stages.clone().count());
        for stage in stages.clone() {
            let (detach, drawing) = self.enter_stage(stage, &output);
            let layer = copies::tracked(&self.layers.all[stage], detach);
            if let Some(watch) = self.watch.as_ref().filter(|_| stage > first) {
                output = watch.border::<A>(output, stage);
            }
            output = if balanced {
                balanced::run(layer.as_ref(), output)
            } else {
                layer.forward(output)
            };
            drop(drawing);
            layers.push(layer);
            self.shapes.ran(stage, &output)?;
            self.check_memory()?;
            self.done(Action::ForwardTracked {
                stage: StageId(stage),
                alternative: usize::from(balanced),
            });
        }
        self.pieces.push(Piece {
            stages,
            input,
            output: Some(output),
            layers,
        });
        Ok(())
    }

    /// Computes the loss, detached, and remembers where the first backward pass starts.
    fn loss<R, F>(
        &mut self,
        joins_piece: bool,
        loss: F,
    ) -> Result<(Tensor<1>, R::Auxiliary), StepError>
    where
        R: StepResult,
        F: FnOnce(A) -> R,
    {
        let stages = self.layers.all.len();
        let own_input = match joins_piece {
            true => None,
            false if self.layers.frozen == stages => Some(self.read(stages)),
            false => Some(leaf(self.read(stages))),
        };
        let output = match &own_input {
            Some(input) => input.clone(),
            None => {
                let piece = self.pieces.iter_mut().find(|piece| piece.ends_at(stages));
                match piece.and_then(|piece| piece.output.take()) {
                    Some(output) => output,
                    None => unreachable!("the program joins the loss to a piece that is there"),
                }
            }
        };
        self.activations[stages] = None;

        let (value, extra) = loss(output).split();
        let [elements] = value.dims();
        if elements != 1 {
            return Err(StepError::LossNotScalar { elements });
        }
        let extra = detached(extra);
        let detached_value = value.clone().inner();
        if let Some(input) = own_input {
            if value.is_tracked() {
                let mut grads = self.backward(&value);
                self.collect_all(&mut grads);
                self.upstream = Some(Upstream::take(&input, &mut grads));
            }
        } else {
            self.loss_root = Some(value);
        }
        Ok((detached_value, extra))
    }

    /// Runs one backward pass through the piece of these stages, from the upstream gradient to the gradient of its
    /// input.
    fn sweep(&mut self, stages: &RangeInclusive<usize>) {
        let place = self
            .pieces
            .iter()
            .rposition(|piece| piece.stages == *stages);
        let Some(place) = place else {
            unreachable!("a valid schedule runs backwards only through what it has tracked");
        };
        let piece = self.pieces.remove(place);
        let (first, last) = (*stages.start(), *stages.end());
        // From here on, activations inside the piece are read only from the graph.
        self.activations[first + 1..=last].fill_with(|| None);
        let upstream = self.upstream.take();
        let from_loss = self.loss_root.is_some();
        let root = match (self.loss_root.take(), upstream, piece.output) {
            (Some(root), _, _) => Some(root).filter(Tensor::is_tracked),
            (None, Some(upstream), Some(output)) => upstream.seed(output),
            _ => None,
        };
        if let Some(root) = root {
            let mut grads = self.backward(&root);
            for layer in &piece.layers {
                graph::collect(layer.as_ref(), &mut grads, &mut self.gradients);
            }
            if from_loss {
                self.collect_all(&mut grads);
            }
            self.upstream = Some(Upstream::take(&piece.input, &mut grads));
        }
        if first > 0 {
            self.activations[first] = None;
        }
        drop(piece.layers);
        drop(piece.input);
        self.done(Action::Backward(StageId(first)));
    }

    /// A backward pass, after which burn has freed its dead nodes.
    fn backward(&mut self, root: &Tensor<1>) -> Gradients {
        let grads = root.backward();
        self.freed_at = node_counter();
        grads
    }

    /// Frees the dead nodes of untracked forwards if there are more than [`DEAD_NODES`].
    fn free_dead_nodes(&mut self, stage: usize, output: &A) {
        if node_counter() - self.freed_at > DEAD_NODES
            && let Some(device) = device_of(output, &self.layers.all[stage])
        {
            drop(self.backward(&graph::lone_leaf(&device)));
        }
    }

    /// Collects the loss's gradients of all parameters of the model: the loss may contain a penalty on them.
    fn collect_all(&mut self, grads: &mut Gradients) {
        for layer in self.layers.all {
            graph::collect(layer, grads, &mut self.gradients);
        }
    }

    /// The input of a stage, without a graph; its slot keeps it.
    fn read(&self, stage: usize) -> A {
        if let Some(activation) = &self.activations[stage] {
            return activation.clone();
        }
        let inside_graph = self
            .pieces
            .iter()
            .rev()
            .find(|piece| piece.ends_at(stage))
            .and_then(|piece| piece.output.clone());
        match inside_graph {
            Some(output) => detached(output),
            None => unreachable!("a valid schedule reads only what is there (stage {stage})"),
        }
    }

    /// Prepares a run of a stage: seeds the generator if the stage draws, and returns whether the run must leave the
    /// layer's own statistics unchanged. The generator is reserved while the returned guard exists.
    fn enter_stage(&mut self, stage: usize, input: &A) -> (bool, Option<Drawing>) {
        let layer = &self.layers.all[stage];
        let device = layer.draws_random().then(|| device_of(input, layer));
        let drawing = device
            .flatten()
            .and_then(|device| Drawing::seeded(&device, self.seed.stage(StageId(stage))));
        let ran_before = self.forward_counts[stage] > 0;
        self.forward_counts[stage] += 1;
        let detach = ran_before && self.layers.tensors[stage].may_hold_statistics;
        (detach, drawing)
    }

    /// Leaves the generator in a state that does not depend on the schedule.
    fn reseed_after(&self) {
        let Some(input) = &self.activations[0] else {
            return;
        };
        if let Some(layer) = self.layers.all.iter().find(|layer| layer.draws_random())
            && let Some(device) = device_of(input, layer)
        {
            drop(Drawing::seeded(&device, self.seed.after()));
        }
    }
}
