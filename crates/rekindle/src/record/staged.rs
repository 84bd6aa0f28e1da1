//! A plan in terms of the model's stages, for tables and timelines: passes, their memory, and the tensors that each makes
//! and frees.

use std::{cmp::Reverse, collections::BTreeSet};

use rekindle_plan::{
    Action, Bytes, Chain, Parts, StageId,
    graph::{
        Change, Graph, Moment, OperationId, Program, Span, SpanPass, Stages, TensorId, changes,
        held,
    },
};
use serde::{Deserialize, Serialize};

use super::{options::Wanted, planned::PlannedRecording, recording::Recording};

/// A plan by stages. Stages are divided between the layers of a [`Sequential`](crate::Sequential), or where few bytes
/// cross the recorded forward pass.
#[derive(Debug, Clone)]
pub struct StagedPlan {
    /// The measured costs of each stage; a stage is named by the parameters that it reads. Fixed bytes are the
    /// process's other memory.
    pub chain: Chain,
    /// For each stage, its index among the marks of a [`Sequential`](crate::Sequential)'s layers.
    pub marks: Vec<Option<usize>>,
    /// The program, in order.
    pub spans: Vec<Span>,
    /// The predicted memory of each span.
    pub held: Vec<Moment>,
    /// The part of the fixed bytes that is not in live buffers: the driver's context, and the overhead of pools.
    pub beside_buffers: Bytes,
    /// What runs; `None` of a chain alone.
    pub order: Option<Order>,
}

/// What a recorded step runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Identifies the recorded step, in hexadecimal: another model, batch or loss has another.
    #[serde(with = "super::hexadecimal")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub recording: u64,
    /// The operations to run, in order, as places in the recorded step. Behind its n operations stand the transfers: n + 2k
    /// copies the tensor number k of `offloaded` to the host, n + 2k + 1 fetches it.
    pub operations: Vec<OperationId>,
    /// The tensors that go to host memory, as places in the recorded step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offloaded: Vec<TensorId>,
}

impl From<&Order> for Wanted {
    fn from(order: &Order) -> Self {
        Self::Operations {
            operations: order.operations.clone(),
            offloaded: order.offloaded.clone(),
        }
    }
}

impl StagedPlan {
    pub(super) fn new<A>(planned: &PlannedRecording<A>) -> Self {
        let (graph, program) = (&planned.graph(), &planned.prepared.program);
        let recording = &planned.measured.recording;
        let stages = Stages::of_graph(graph);
        Self {
            chain: named(graph, recording, &stages),
            beside_buffers: planned.beside,
            order: Some(Order {
                recording: recording.fingerprint(),
                operations: program.operations().to_vec(),
                offloaded: planned.prepared.offloaded.clone(),
            }),
            ..Self::of_stages(&planned.linked(), &stages, program)
        }
    }

    /// The plan of a graph without a recording, possibly with transfers: its stages have no other names than `stages` has.
    pub(super) fn of_stages(graph: &Graph, stages: &Stages, program: &Program) -> Self {
        let spans = stages.spans(graph, program);
        Self {
            held: held(graph, program, &spans),
            marks: marks(graph, stages),
            chain: stages.chain().clone(),
            spans,
            beside_buffers: Bytes::ZERO,
            order: None,
        }
    }

    /// The passes of stages as actions: a recompute is another `forward`. Transfers belong to the pass in which they
    /// run.
    pub fn actions(&self) -> Vec<Action> {
        self.passes().map(|(action, _)| action).collect()
    }

    /// The actions, each with the memory at its highest moment by parts.
    pub fn passes(&self) -> impl Iterator<Item = (Action, Parts)> {
        let same = |a: &Span, b: &Span| (a.pass, a.stage) == (b.pass, b.stage);
        let mut held = self.held.iter().map(|moment| moment.at_peak);
        self.spans.chunk_by(same).map(move |pass| {
            // The first of several equal maxima.
            let highest = held.by_ref().take(pass.len()).reduce(|highest, next| {
                match next.total() > highest.total() {
                    true => next,
                    false => highest,
                }
            });
            (action(&pass[0]), highest.unwrap_or_default())
        })
    }
}

/// The action that a span is, or is part of.
pub fn action(span: &Span) -> Action {
    match span.pass {
        SpanPass::Forward | SpanPass::Recompute => Action::Forward(span.stage),
        SpanPass::Loss => Action::Loss,
        SpanPass::Backward => Action::Backward(span.stage),
    }
}

pub(super) fn marks(graph: &Graph, stages: &Stages) -> Vec<Option<usize>> {
    let mark = |stage| {
        let mut marks = stages
            .forward(StageId(stage))
            .filter_map(|id| graph.operation(id).stage);
        marks.next().map(|mark| mark as usize)
    };
    (0..stages.chain().stages.len()).map(mark).collect()
}

/// The chain with names, and the bytes of the parameters that each stage reads.
pub(super) fn named(graph: &Graph, recording: &Recording, stages: &Stages) -> Chain {
    let mut chain = stages.chain().clone();
    let mut parameters: Vec<Option<usize>> = vec![None; recording.tensors.len()];
    for (place, parameter) in recording.parameters.iter().enumerate() {
        parameters[parameter.tensor] = Some(place);
    }
    for (index, stage) in chain.stages.iter_mut().enumerate() {
        let reads = stages.forward(StageId(index)).flat_map(|id| {
            let inputs = graph.operation(id).inputs.iter();
            inputs.filter_map(|tensor| *parameters.get(tensor.index())?)
        });
        let mut read: Vec<usize> = reads.collect();
        read.sort_unstable();
        read.dedup();
        let read = || read.iter().map(|&place| &recording.parameters[place]);
        stage.param_bytes = read()
            .filter(|parameter| parameter.trains)
            .map(|parameter| Bytes(recording.tensors.value_bytes(parameter.tensor)))
            .sum();
        stage.name = match common(read().map(|parameter| parameter.path.as_str())) {
            Some(name) => name,
            None => format!("stage {index}"),
        };
    }
    chain
}

/// The longest common prefix of all paths, in whole modules.
fn common<'a>(mut paths: impl Iterator<Item = &'a str>) -> Option<String> {
    let (module, _) = paths.next()?.rsplit_once('.')?;
    let mut shared: Vec<&str> = module.split('.').collect();
    for path in paths {
        let equal = shared
            .iter()
            .zip(path.split('.'))
            .take_while(|(a, b)| *a == b);
        shared.truncate(equal.count());
    }
    (!shared.is_empty()).then(|| shared.join("."))
}

/// Tensors of one shape and type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AlikeTensors {
    /// The shape of each.
    pub shape: Vec<usize>,
    /// The type of their values, such as `f32`.
    pub dtype: String,
    /// How many they are.
    pub count: usize,
    /// Bytes of the values of all of them.
    pub bytes: Bytes,
}

/// What a span changes on the device: see [`Change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanChange {
    /// The span; `None` for the update after the step, which frees the gradients that the step returned.
    pub span: Option<Span>,
    /// Those that are there after it and were not before it, most bytes first.
    pub appeared: Vec<AlikeTensors>,
    /// Those that were there before it and are not after it, most bytes first.
    pub went: Vec<AlikeTensors>,
}

impl<A> PlannedRecording<A> {
    /// What each span changes, and what the update after them does.
    pub(super) fn changes(&self) -> Vec<SpanChange> {
        let graph = self.linked();
        let recording = &self.measured.recording;
        let roots = graph.roots();
        let gradients: BTreeSet<TensorId> = recording.gradients().map(|one| roots[one]).collect();
        let update = Change {
            appeared: Vec::new(),
            went: Vec::from_iter(gradients),
        };
        let mut all = changes(&graph, &self.prepared.program, &self.spans);
        all.push(update);
        let spans = self.spans.iter().cloned().map(Some).chain([None]);
        let changes = spans.zip(all).map(|(span, change)| SpanChange {
            span,
            appeared: alike(recording, change.appeared),
            went: alike(recording, change.went),
        });
        changes.collect()
    }
}

/// Tensors of a recording, by shape and type.
fn alike(recording: &Recording, tensors: Vec<TensorId>) -> Vec<AlikeTensors> {
    let mut alike: Vec<AlikeTensors> = Vec::new();
    for tensor in tensors.into_iter().map(TensorId::index) {
        let shape = recording.tensors.shape(tensor).as_slice();
        let dtype = recording.tensors.dtype(tensor).name();
        let bytes = Bytes(recording.tensors.value_bytes(tensor));
        let same = |one: &&mut AlikeTensors| one.shape == shape && one.dtype == dtype;
        match alike.iter_mut().find(same) {
            Some(known) => {
                known.count += 1;
                known.bytes += bytes;
            }
            None => alike.push(AlikeTensors {
                shape: shape.to_vec(),
                dtype: dtype.to_owned(),
                count: 1,
                bytes,
            }),
        }
    }
    alike.sort_by_key(|one| Reverse(one.bytes));
    alike
}
