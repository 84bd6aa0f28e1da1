//! What is wanted of plans, and all that they depend on: budget, device, updates, and other memory.

use std::{sync::Arc, time::Duration};

use burn::tensor::Device;
use rekindle_plan::{
    Bytes, OptimizerCost, Planner, Request, Seconds,
    graph::{Graph, GraphPlan, Link, OperationId, PlanError, TensorId, plan_graph},
};

use super::{
    RecordError,
    buckets::staging,
    comparison::Comparison,
    optimizer_state::{OnHost, OptimizerState, ShardedBecause, StateChoice},
    recording::Recording,
    room::Room,
    update::{InBackwardBecause, Update, Updates},
    update_costs::UpdateCosts,
};
use crate::{
    meter::{Count, Meter},
    reduce::shards::Shards,
};

/// Share of a budget that is withheld from plans: a step's peak varies a little from run to run, with the scratch
/// memory of kernel threads that happen to be busy at the same time. Observed: up to 0.2%.
pub(super) const RESERVE: f64 = 0.01;

/// Share of the reserve that is also withheld from pools: in any step, kernels may be tried for a part of a group that
/// is usually fused. Observed on the stand-in for CUDA's driver: up to 0.07% of a budget.
const FOR_POOLS: f64 = 0.5;

/// A budget minus its reserve.
pub(super) fn without_reserve(budget: Bytes, reserve: f64) -> Bytes {
    Bytes((budget.0 as f64 * (1.0 - reserve)) as u64)
}

/// The smallest budget that leaves `bytes` after the reserve is subtracted.
#[must_use]
pub fn with_reserve(bytes: Bytes) -> Bytes {
    Bytes((bytes.0 as f64 / (1.0 - RESERVE)).ceil() as u64 + 1)
}

/// What a user decides about a step and all its plans.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) program: ProgramOptions,
    /// Which updates plans may have.
    pub(super) updates: Updates,
    /// The link to host memory, if tensors may be offloaded.
    pub(super) link: Option<Link>,
    pub(super) count: Count,
    /// Whether values are checked.
    pub(super) check: bool,
    /// How often the step is compared with its recording.
    pub(super) comparison: Comparison,
    /// Bytes that will be held while the step runs but are not allocated when it is planned.
    pub(super) later: Bytes,
    /// Parts of a batch that run one after the other, at most.
    pub(super) parts: usize,
}

/// What only the program decides about a step and all its plans.
#[derive(Clone)]
pub struct ProgramOptions {
    /// Makes plans in another process, if it can.
    pub elsewhere: Option<PlanElsewhere>,
    /// Who may keep the optimizer's state, if ranks share the step; the optimizer is given without
    /// [shards](super::Optimizer::shards), and run with those of the [plan](super::Step::shards).
    pub state: StateChoice,
    /// Whether a GPU's kernels are chosen by dry runs, which hold a budget while kernels are tried. During a dry run cubecl
    /// drops the kernel launches of every thread of the process, on every device, and reports nothing: no other thread may
    /// use a GPU.
    pub dry_runs: bool,
    /// Bytes that will be used temporarily between steps, when there are neither activations nor gradients, such as copies
    /// from which a snapshot is written.
    pub between: Bytes,
    /// Whether the process's peak until it is planned counts, too, on the CPU backend: a smaller budget is refused.
    pub since_start: bool,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        Self {
            elsewhere: None,
            state: StateChoice::Whole,
            dry_runs: false,
            between: Bytes::ZERO,
            since_start: false,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            program: ProgramOptions::default(),
            updates: Updates::One(Update::After),
            link: None,
            count: Count::default(),
            check: true,
            comparison: Comparison::default(),
            later: Bytes::ZERO,
            parts: 1,
        }
    }
}

/// The way in which a step is planned, and why it is not an earlier one.
#[derive(Clone, Default)]
pub(super) struct Way {
    /// When parameters are updated.
    pub(super) update: Update,
    /// Who keeps the optimizer's state, if ranks share the step.
    pub(super) state: OptimizerState,
    /// What of it is in host memory between updates.
    pub(super) on_host: Option<Arc<OnHost>>,
    pub(super) in_backward_because: Option<InBackwardBecause>,
    pub(super) sharded_because: Option<ShardedBecause>,
}

/// The requirements for a plan.
#[derive(Clone)]
pub(super) struct Planning {
    pub(super) budget: Option<Bytes>,
    /// Free memory of the device, used if there is no budget.
    pub(super) free: Option<Bytes>,
    pub(super) wanted: Wanted,
    pub(super) options: Options,
    /// The way in which it is planned.
    pub(super) way: Way,
    /// The costs of updates after the step and in the backward pass, where plans may have them.
    pub(super) either: [UpdateCosts; 2],
    /// If ranks share the step: which of them keeps the optimizer's state of which parameter, if they divide it.
    pub(super) shards: Option<Shards>,
    /// The process's peak before planning, as far as it counts.
    pub(super) until_now: Bytes,
    /// The same before the step was measured without its budget, which was exceeded by then.
    pub(super) beyond: Option<Bytes>,
    pub(super) meter: Arc<dyn Meter>,
    pub(super) device: Device,
    /// Whether the step runs in the process's own memory, which is read at no cost.
    pub(super) on_host: bool,
    /// The time that comparing a step takes, its beginning and as a whole.
    pub(super) comparison_times: [Duration; 2],
    /// What burn's autodiff takes besides, for each operation of a plain step.
    pub(super) autodiff_time: Seconds,
    /// Keeps pools within the budget.
    pub(super) room: Arc<Room>,
}

/// What is in use when a plan is made.
#[derive(Clone, Copy, Default)]
pub(super) struct Now {
    /// What an earlier plan expects to be in use besides the step, what is held later included.
    pub(super) expected: Option<Bytes>,
    /// If steps have run, so that the optimizer's state is in use: the bytes of it that are on the host.
    pub(super) updated: Option<Bytes>,
    /// Whether the batch is not allocated.
    pub(super) without_batch: bool,
}

impl Planning {
    /// These options for another budget.
    pub(super) fn with_budget(&self, budget: Option<Bytes>, wanted: Wanted) -> Self {
        let planning = Self {
            budget,
            wanted,
            ..self.clone()
        };
        Self {
            room: Arc::new(planning.new_room()),
            ..planning
        }
    }

    /// A [`Room`] that keeps pools within the budget, if the budget bounds them.
    pub(super) fn new_room(&self) -> Room {
        let budget = self.budget.filter(|_| self.bounds_pools());
        let budget = budget.map(|budget| without_reserve(budget, RESERVE * FOR_POOLS));
        Room::new(self.meter.clone(), budget.unwrap_or(Bytes::MAX))
    }

    /// The cost of each update.
    pub(super) fn updates(&self) -> UpdateCosts {
        let Way { update, state, .. } = self.way;
        let mut updates = self.either[update as usize].clone();
        updates.on_host.clone_from(&self.way.on_host);
        if let Some(shards) = &self.shards {
            updates.shards = (state == OptimizerState::Sharded).then(|| shards.clone());
        }
        updates
    }

    /// The process's peak until now, if it counts: on the CPU, measuring, recording and planning may take more than the
    /// step of a tiny model.
    pub(super) fn peak_until_now(&self) -> Bytes {
        match self.options.program.since_start && self.on_host {
            true => self
                .beyond
                .unwrap_or_else(|| self.meter.lifetime_peak().in_use_bytes),
            false => Bytes::ZERO,
        }
    }

    /// The cost of all updates of a step together, with the state that none has yet.
    pub(super) fn optimizer(&self, recording: &Recording) -> OptimizerCost {
        self.updates().together(self.way.update, recording)
    }

    /// Bytes of the optimizer's state on the host.
    pub(super) fn state_on_host(&self) -> Bytes {
        let on_host = self.way.on_host.as_ref();
        on_host.map_or(Bytes::ZERO, |on_host| on_host.bytes)
    }

    /// What burn's autodiff takes in a plain step.
    pub(super) fn autodiff_time(&self, recording: &Recording) -> Seconds {
        Seconds(self.autodiff_time.0 * recording.operations.len() as f64)
    }

    /// Bytes that an exchange between ranks holds while the step runs, and not during the optimizer's update.
    pub(super) fn staging(&self, recording: &Recording) -> Bytes {
        match self.shards.is_some() && self.on_host {
            true => staging(
                recording,
                self.way.update,
                self.updates().most_temporary(recording),
            ),
            false => Bytes::ZERO,
        }
    }

    /// Whether the budget bounds the bytes that pools reserve.
    pub(super) fn bounds_pools(&self) -> bool {
        self.options.count == Count::Reserved && !self.on_host
    }

    /// Fails if an allocation has failed, or the process would exceed its budget with `more` bytes.
    pub(super) fn check_memory(&self, more: Bytes) -> Result<(), RecordError> {
        if let Some(failure) = self.meter.failure() {
            return Err(RecordError::OutOfMemory(failure));
        }
        // Pools are kept within their budget by `room`, because reading them waits for queued work.
        let budget = self.budget.filter(|_| self.on_host);
        match budget.map(|budget| (self.in_use() + more, budget)) {
            Some((in_use, budget)) if in_use > budget => {
                Err(RecordError::OverBudget { in_use, budget })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn in_use(&self) -> Bytes {
        self.meter.read().in_use_bytes
    }

    /// What the driver holds besides the pools, if the budget bounds that.
    pub(super) fn driver_bytes(&self) -> Bytes {
        match self.bounds_pools() {
            true => self.meter.context_bytes(),
            false => Bytes::ZERO,
        }
    }

    /// The unit that a budget's allocations are rounded up to.
    pub(super) fn allocation_unit(&self) -> Bytes {
        match self.bounds_pools() {
            true => self.meter.allocation_unit(),
            false => Bytes::ZERO,
        }
    }

    /// Device memory besides live buffers: what the driver holds, padding, and one tensor that a queue frees late.
    pub(super) fn beside_buffers(&self, graph: &Graph) -> Bytes {
        if !self.bounds_pools() {
            return Bytes::ZERO;
        }
        const PADDING_BYTES: u64 = 512;
        let largest = graph.tensors.iter().filter(|tensor| !tensor.given);
        let largest = largest.map(|tensor| tensor.bytes).max().unwrap_or_default();
        self.driver_bytes() + largest + Bytes(graph.tensors.len() as u64 * PADDING_BYTES / 2)
    }
}

/// Plans in another process, or returns `None` if that is impossible. Planners take memory, which on the CPU backend
/// counts towards the budget.
pub type PlanElsewhere = fn(&Graph, &Request) -> Option<Result<GraphPlan, PlanError>>;

/// The kind of program that is requested.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// The planner's fastest program that fits.
    Planner {
        /// The planner.
        planner: Planner,
        /// How many times the usual work its [search](Request::effort) may do.
        effort: u32,
    },
    /// These operations of the recording, with transfers of some of its tensors.
    Operations {
        /// The operations; numbers after the recording's are [transfers](Graph::linked).
        operations: Vec<OperationId>,
        /// The offloaded tensors.
        offloaded: Vec<TensorId>,
    },
}

impl From<Planner> for Wanted {
    fn from(planner: Planner) -> Self {
        Self::Planner { planner, effort: 1 }
    }
}

impl From<&Request> for Wanted {
    fn from(request: &Request) -> Self {
        let (planner, effort) = (request.planner, request.effort);
        Self::Planner { planner, effort }
    }
}

impl Wanted {
    /// The share of a budget that the plan may not take: half of it for a program that was made elsewhere within the whole,
    /// because this process may hold a little more.
    pub(super) fn reserve(&self) -> f64 {
        match self {
            Self::Planner { .. } => RESERVE,
            Self::Operations { .. } => RESERVE / 2.0,
        }
    }

    /// The plan for a graph; of given operations, whether they fit or not.
    pub(super) fn plan(
        &self,
        graph: &Graph,
        budget: Option<Bytes>,
        elsewhere: Option<PlanElsewhere>,
        link: Option<Link>,
    ) -> Result<GraphPlan, PlanError> {
        match self {
            &Self::Planner { planner, effort } => {
                let request = Request {
                    budget,
                    planner,
                    link,
                    effort,
                };
                let planned = elsewhere.and_then(|plan| plan(graph, &request));
                planned.unwrap_or_else(|| plan_graph(graph, &request))
            }
            Self::Operations {
                operations,
                offloaded,
            } => {
                let (operations, offloaded) = (operations.clone(), offloaded.clone());
                GraphPlan::of_operations(graph, link.as_ref(), operations, offloaded)
            }
        }
    }
}

/// A planner's plan, or its one with the smallest peak, and whether it fits; `apart` bytes are in use before or after the
/// step.
pub(super) fn fitting(
    planned: Result<GraphPlan, PlanError>,
    apart: Bytes,
    within: Option<Bytes>,
) -> Result<(GraphPlan, bool), RecordError> {
    match planned {
        Ok(plan) => {
            let peak = plan.simulated.peak.max(apart);
            Ok((plan, within.is_none_or(|within| peak <= within)))
        }
        Err(PlanError::Infeasible { leanest, .. }) => Ok((*leanest, false)),
        Err(error) => Err(error.into()),
    }
}
