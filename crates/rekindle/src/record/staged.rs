//! A plan in terms of the model's stages: what tables and timelines show.

use rekindle_plan::{
    Action, Bytes, Chain, Parts, Schedule, StageId,
    graph::{
        Crossing, Graph, GraphPlanError, Levers, Link, Moment, OperationId, Program, Span,
        SpanPass, Stages, TensorId, borders, held,
    },
};

use super::{planned::PlannedRecording, recording::Recording};

/// A plan as its stages meet it. Stages are those between the layers of a [`Sequential`](crate::Sequential), or where
/// the recorded forward pass is narrow.
#[derive(Debug, Clone)]
pub struct StagedPlan {
    /// What each stage costs, as measured: a stage is named by the parameters that it reads. Fixed bytes are all that
    /// the process holds besides.
    pub chain: Chain,
    /// Of each stage, its place among the marks of a [`Sequential`](crate::Sequential)'s layers.
    pub marks: Vec<Option<usize>>,
    /// The program, in order.
    pub spans: Vec<Span>,
    /// What each span should hold.
    pub held: Vec<Moment>,
    /// How often each stage's forward runs: the most often that one of its operations does.
    pub forwards: Vec<usize>,
    /// Of these, the bytes that no live buffer holds: the driver's context, and what pools add.
    pub beside_buffers: Bytes,
    /// Where parameters are updated in the backward pass: what that and recomputing do to the peak, each by itself.
    pub levers: Option<Levers>,
    /// The schedule over stages that the program comes from, where it comes from one.
    pub schedule: Option<Schedule>,
    /// The program's operations, by their places in the recording, and behind these the
    /// [transfers](Graph::with_transfers).
    pub operations: Vec<OperationId>,
    /// The tensors that go to the host.
    pub offloaded: Vec<TensorId>,
    /// Equal for recordings of equal steps.
    pub recording: u64,
}

impl StagedPlan {
    pub(super) fn new<A>(planned: &PlannedRecording<A>) -> Self {
        let (graph, program) = (&planned.graph(), planned.prepared.program());
        let recording = &planned.measured.recording;
        let stages = stages(graph);
        let offloaded = planned.prepared.offloaded().to_vec();
        let linked = &planned.linked();
        let staged = Self::of_stages(
            linked,
            &stages,
            program,
            offloaded,
            planned.schedule.clone(),
        );
        Self {
            chain: named(graph, recording, &stages),
            beside_buffers: planned.beside,
            recording: recording.hash,
            ..staged
        }
    }

    /// The plan of a graph alone: its stages have no names, and no parameters.
    pub(super) fn of_graph(
        graph: &Graph,
        link: Option<Link>,
        program: &Program,
        offloaded: Vec<TensorId>,
        schedule: Option<Schedule>,
    ) -> Result<Self, GraphPlanError> {
        let linked = graph.linked(&offloaded, link.as_ref())?;
        Ok(Self::of_stages(
            &linked,
            &stages(graph),
            program,
            offloaded,
            schedule,
        ))
    }

    fn of_stages(
        graph: &Graph,
        stages: &Stages,
        program: &Program,
        offloaded: Vec<TensorId>,
        schedule: Option<Schedule>,
    ) -> Self {
        let spans = stages.spans(graph, program);
        Self {
            held: held(graph, program, &spans),
            forwards: forwards(graph, program, stages),
            marks: marks(graph, stages),
            chain: stages.chain().clone(),
            spans,
            // A program that runs breaks no rule.
            levers: Levers::of(graph, program).ok().flatten(),
            beside_buffers: Bytes::ZERO,
            schedule,
            operations: program.operations().to_vec(),
            offloaded,
            recording: 0,
        }
    }

    /// The passes of stages as actions: a recompute is a `forward` that comes again. Transfers belong to the pass that
    /// they run in.
    pub fn actions(&self) -> Vec<Action> {
        self.passes().map(|(action, _)| action).collect()
    }

    /// The actions, and of each the parts of its highest moment.
    pub fn passes(&self) -> impl Iterator<Item = (Action, Parts)> {
        let same = |a: &Span, b: &Span| (a.pass, a.stage) == (b.pass, b.stage);
        let mut held = self.held.iter().map(|moment| moment.at_peak);
        self.spans.chunk_by(same).map(move |pass| {
            // The first of equals.
            let highest = held.by_ref().take(pass.len()).reduce(|highest, next| {
                match next.total() > highest.total() {
                    true => next,
                    false => highest,
                }
            });
            (action(&pass[0]), highest.unwrap_or_default())
        })
    }

    /// First and last stage of each segment of stages that are recomputed together; `None` for other plans.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        let stages = self.chain.stages.len();
        match &self.schedule {
            Some(schedule) => schedule.segments(),
            None if stages > 0
                && self.offloaded.is_empty()
                && self.forwards.iter().all(|&count| count == 1) =>
            {
                Some(vec![(StageId(0), StageId(stages - 1))])
            }
            None => None,
        }
    }
}

/// What a span is in a schedule, or what it is part of.
pub fn action(span: &Span) -> Action {
    match span.pass {
        SpanPass::Forward | SpanPass::Recompute => Action::Forward(span.stage),
        SpanPass::Loss => Action::Loss,
        SpanPass::Backward => Action::Backward(span.stage),
    }
}

pub(super) fn stages(graph: &Graph) -> Stages {
    Stages::new(graph, &borders(graph), Crossing::Carried)
}

fn forwards(graph: &Graph, program: &Program, stages: &Stages) -> Vec<usize> {
    let mut runs = vec![0; graph.operations.len()];
    for id in program.operations() {
        runs[id.index()] += 1;
    }
    let most = |stage| {
        stages
            .forward(StageId(stage))
            .map(|id| runs[id.index()])
            .max()
    };
    let stages = 0..stages.chain().stages.len();
    stages.map(|stage| most(stage).unwrap_or(1)).collect()
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

/// The longest path that all paths begin with, at the level of modules.
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
