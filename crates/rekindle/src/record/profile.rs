//! A measured step without its recording.

use rekindle_plan::{
    Bytes, Chain, Planner, Request, Seconds,
    graph::{Graph, GraphPlan, Link, PlanError, Stages, TensorId, plan_chain, simulate},
};
use serde::{Deserialize, Serialize};

use super::{
    PlanSummary, RecordError,
    options::{RESERVE, Wanted, fitting, with_reserve, without_reserve},
    planned::PlannedRecording,
    program::plain_order,
    recording::Recording,
    staged::{Order, StagedPlan},
};

/// A step as it was measured: all that plans are made from, so that they can be made where the model is not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepProfile {
    /// The operations, what each takes, and as fixed bytes all that is held besides.
    pub graph: Graph,
    /// In use at most while the optimizer updates.
    pub update_bytes: Bytes,
    /// Of the fixed bytes, those that no live buffer holds: the driver's context, and what pools add.
    pub beside_buffers_bytes: Bytes,
    /// The link to host memory, where tensors may go there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// What burn's autodiff takes in a plain step, besides its operations.
    pub autodiff_s: Seconds,
    /// The kinds of operations: burn's name, and the shape of what such an operation makes.
    #[serde(default)]
    pub kinds: Vec<OperationKind>,
    /// The place in `kinds` of each operation's.
    #[serde(default)]
    pub kind_of: Vec<u32>,
    /// Equal for recordings of equal steps.
    #[serde(with = "super::hexadecimal")]
    pub recording: u64,
}

/// burn's name of an operation, and the shape of what it makes.
pub type OperationKind = (String, Vec<usize>);

/// Those of a recording, and the place among them of each operation's.
pub(super) fn kinds(recording: &Recording) -> (Vec<OperationKind>, Vec<u32>) {
    let operations = &recording.operations;
    let kinds = operations.kinds().iter().map(|kind| {
        let made = kind.operation.outputs().next();
        let shape = made.map(|tensor| tensor.shape.as_slice().to_vec());
        (kind.name.clone(), shape.unwrap_or_default())
    });
    (kinds.collect(), operations.kind_numbers().collect())
}

impl StepProfile {
    pub(super) fn new<A>(planned: &PlannedRecording<A>, autodiff_s: Seconds) -> Self {
        let recording = &planned.measured.recording;
        let (kinds, kind_of) = kinds(recording);
        Self {
            graph: planned.graph(),
            update_bytes: planned.update_bytes,
            beside_buffers_bytes: planned.beside,
            link: planned.numbers.offload.map(|offload| offload.link),
            autodiff_s,
            kinds,
            kind_of,
            recording: recording.fingerprint(),
        }
    }

    /// Plans like [`Step::set_budget`](super::Step::set_budget). The plan's peak includes the memory of the plan made
    /// where the step was measured.
    ///
    /// # Errors
    ///
    /// If no plan fits the budget, or the graph is invalid.
    pub fn plan(
        &self,
        budget: Option<Bytes>,
        planner: Planner,
    ) -> Result<PlanSummary, RecordError> {
        plan_of_profile(self, budget, planner).map(|(plan, _)| plan)
    }

    /// The smallest budget for which a planner has a plan.
    ///
    /// # Errors
    ///
    /// If the graph is invalid.
    pub fn smallest_budget(&self, planner: Planner) -> Result<Bytes, RecordError> {
        match self.plan(Some(Bytes::ZERO), planner) {
            Err(RecordError::Infeasible { smallest, .. }) => Ok(smallest),
            plan => plan.map(|plan| plan.predicted_peak),
        }
    }

    /// What every plan takes at least: the largest operation with its inputs. It takes hardly any memory to find out.
    #[doc(hidden)]
    #[must_use]
    pub fn least_bytes(&self) -> Bytes {
        let graph = &self.graph;
        let roots = graph.roots();
        let needs = graph.operations.iter().map(|one| {
            let read = one.inputs.iter().map(|input| roots[input.index()]);
            let mut held: Vec<TensorId> = read.collect();
            if !one.view && one.in_place.is_none() {
                held.extend(&one.outputs);
            }
            held.sort_unstable();
            held.dedup();
            let tensors = held.iter().map(|tensor| graph.tensor(*tensor));
            let made = tensors.filter(|tensor| !tensor.given);
            made.map(|tensor| tensor.bytes).sum::<Bytes>() + one.temp_bytes
        });
        let least = graph.fixed_bytes + needs.max().unwrap_or_default();
        least.max(self.update_bytes)
    }

    /// The budget of the leanest plan over stages, found in a hundredth of the time of the smallest budget of `auto`.
    ///
    /// # Errors
    ///
    /// If the graph is invalid.
    #[doc(hidden)]
    pub fn leanest_stages(&self) -> Result<Bytes, RecordError> {
        let graph = &self.graph;
        let stages = Stages::of_graph(graph);
        let request = Request::within(Bytes::ZERO);
        let plan = plan_chain(stages.chain(), &request);
        let (leanest, _) = fitting(plan, Bytes::ZERO, None)?;
        let schedule = leanest.schedule.unwrap_or_default();
        let program = stages.program(graph, &schedule).map_err(PlanError::from)?;
        let lean = simulate(graph, &program).peak;
        Ok(with_reserve(lean.max(self.update_bytes)))
    }

    /// A plan in numbers and by stages.
    fn shown(
        &self,
        stages: &Stages,
        plan: GraphPlan,
        budget: Option<Bytes>,
    ) -> Result<(PlanSummary, StagedPlan), RecordError> {
        let plain = simulate(&self.graph, &plain_order(&self.graph)?);
        let (graph, apart) = (&self.graph, [self.update_bytes; 2]);
        let mut numbers = PlanSummary::new(&plan, &plain, graph, budget, apart, self.link);
        numbers.divide(stages.chain().stages.len());
        numbers.plain_time += self.autodiff_s;
        numbers.predicted_in_use -= self.beside_buffers_bytes;
        let linked = graph.linked(&plan.offloaded, self.link.as_ref());
        let linked = linked.map_err(PlanError::from)?;
        let staged = StagedPlan {
            beside_buffers: self.beside_buffers_bytes,
            order: Some(Order {
                recording: self.recording,
                operations: plan.program.operations().to_vec(),
                offloaded: plan.offloaded,
            }),
            ..StagedPlan::of_stages(&linked, stages, &plan.program)
        };
        Ok((numbers, staged))
    }
}

/// Like [`StepProfile::plan`], for any kind of plan and also by stages, which have no names here.
///
/// # Errors
///
/// See [`StepProfile::plan`].
pub fn plan_of_profile(
    step: &StepProfile,
    budget: Option<Bytes>,
    wanted: impl Into<Wanted>,
) -> Result<(PlanSummary, StagedPlan), RecordError> {
    let within = budget.map(|budget| without_reserve(budget, RESERVE));
    let plan = wanted.into().plan(&step.graph, within, None, step.link);
    let (plan, fits) = fitting(plan, step.update_bytes, within)?;
    if !fits {
        return Err(RecordError::Infeasible {
            budget: budget.unwrap_or(Bytes::MAX),
            smallest: with_reserve(plan.simulated.peak.max(step.update_bytes)),
            floor: None,
        });
    }
    step.shown(&Stages::of_graph(&step.graph), plan, budget)
}

/// Plans for a chain alone and its own numbers, without a reserve. The operations are those of the graph that is
/// [made for it](Stages::of_chain).
///
/// # Errors
///
/// If no plan fits the budget, or the chain is invalid.
pub fn plan_of_chain(
    chain: &Chain,
    request: &Request,
) -> Result<(PlanSummary, StagedPlan), RecordError> {
    let (update_bytes, budget) = (chain.optimizer_peak(), request.budget);
    let (plan, fits) = fitting(plan_chain(chain, request), update_bytes, budget)?;
    if !fits {
        return Err(RecordError::Infeasible {
            budget: budget.unwrap_or(Bytes::MAX),
            smallest: plan.simulated.peak.max(update_bytes),
            floor: None,
        });
    }
    let (graph, stages) = Stages::of_chain(chain);
    let step = StepProfile {
        graph,
        update_bytes,
        beside_buffers_bytes: Bytes::ZERO,
        link: None,
        autodiff_s: Seconds::ZERO,
        kinds: Vec::new(),
        kind_of: Vec::new(),
        recording: 0,
    };
    let (numbers, staged) = step.shown(&stages, plan, budget)?;
    // Nothing can run.
    let order = None;
    Ok((numbers, StagedPlan { order, ..staged }))
}
