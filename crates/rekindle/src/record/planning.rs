//! From a recording to a plan inside a budget: shapes, measurement, program.
//!
//! 1. From shapes alone a first program is found, the leanest where the plain order may not fit.
//! 2. It runs a few times, and every operation is measured.
//! 3. The measured graph is planned for the budget, less all that the process holds besides.

use std::{collections::HashSet, rc::Rc, sync::Arc, time::Duration};

use burn::tensor::{DType, Device, DispatchTensor, Shape};
use rekindle_plan::{
    Bytes, OptimizerCost, Schedule,
    graph::{
        Graph, GraphPlan, GraphPlanError, GraphPlanner, GraphRequest, Link, OnDevice, OperationId,
        Program, Simulated, TensorId, Timetable, plan_graph, simulate, smallest_program,
    },
};

use super::{
    RecordError,
    agreement::{VALUE, gradients, staging},
    choosing,
    given::started,
    measure::Costs,
    planned::{Measured, Planned},
    program::Prepared,
    recording::Recording,
    step_plan::Offload,
    update::{EitherUpdate, Update, UpdateCosts},
};
use crate::{
    executor::Room,
    graph::free_dead_nodes,
    meter::{Count, Meter},
    reduce::Shards,
};

/// Share of a budget that the plain order must fit in, by shapes alone, to be what is measured: temporary bytes are not
/// known yet.
const SURELY: f64 = 0.8;

/// What kernels may keep once they have run, on the CPU backend: scratch of each thread. Seen: some hundred KiB a thread.
const SCRATCH_BYTES: u64 = 2 << 20;

/// What tables take for each tensor that the interpreter is given, and for each that it makes. Seen on the CPU backend.
const GIVEN_BYTES: u64 = 256;
const MADE_BYTES: u64 = 96;

/// How often the plan is made again because it takes memory itself.
const ROUNDS: usize = 3;

/// Plans in another process, where that can be (`None` where not): planners take memory, which on the CPU backend is
/// memory that a budget bounds.
pub type PlanElsewhere = fn(&Graph, &GraphRequest) -> Option<Result<GraphPlan, GraphPlanError>>;

/// Which program is wanted.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// The planner's fastest that fits.
    Planner(GraphPlanner),
    /// A schedule over the stages that the plan is told in; see [`StagedPlan`](super::StagedPlan).
    Schedule(Schedule),
    /// These operations of the recording, with transfers of some of its tensors.
    Operations {
        /// The operations, and behind the recording's the [transfers](Graph::with_transfers).
        operations: Vec<OperationId>,
        /// The tensors that go to the host.
        offloaded: Vec<TensorId>,
    },
}

impl From<GraphPlanner> for Wanted {
    fn from(planner: GraphPlanner) -> Self {
        Self::Planner(planner)
    }
}

impl Wanted {
    /// The plan for a graph.
    fn plan(
        &self,
        graph: &Graph,
        budget: Option<Bytes>,
        slots: usize,
        elsewhere: Option<PlanElsewhere>,
        link: Option<Link>,
    ) -> Result<GraphPlan, GraphPlanError> {
        let plan = match self {
            Self::Planner(planner) => {
                let request = GraphRequest {
                    budget,
                    planner: *planner,
                    slots,
                    link,
                };
                let planned = elsewhere.and_then(|plan| plan(graph, &request));
                return planned.unwrap_or_else(|| plan_graph(graph, &request));
            }
            Self::Schedule(schedule) => GraphPlan::of_schedule(graph, schedule.clone())?,
            Self::Operations {
                operations,
                offloaded,
            } => GraphPlan::of_operations(
                graph,
                link.as_ref(),
                operations.clone(),
                offloaded.clone(),
            )?,
        };
        match budget {
            Some(budget) if plan.simulated.peak > budget => Err(GraphPlanError::Infeasible {
                planner: plan.planner,
                budget,
                smallest: plan.simulated.peak,
            }),
            _ => Ok(plan),
        }
    }
}

/// What is wanted of a plan.
#[derive(Clone)]
pub(super) struct Planning {
    pub(super) budget: Option<Bytes>,
    /// What the device has free, where there is no budget.
    pub(super) free: Option<Bytes>,
    pub(super) wanted: Wanted,
    pub(super) slots: usize,
    pub(super) elsewhere: Option<PlanElsewhere>,
    /// The link to host memory, where tensors may go there.
    pub(super) link: Option<Link>,
    pub(super) count: Count,
    pub(super) input_gradients: bool,
    pub(super) optimizer: OptimizerCost,
    /// When parameters are updated, and what the update of each takes.
    pub(super) update: Update,
    pub(super) updates: UpdateCosts,
    /// The same where plans may change `update`.
    pub(super) either: Option<EitherUpdate>,
    /// What will be held while the step runs, and is not there when it is planned.
    pub(super) later: Bytes,
    /// What will be taken for a while between steps.
    pub(super) between: Bytes,
    /// Whether ranks share the step.
    pub(super) shared: bool,
    /// Whether steps have run, after which the optimizer's state is in use.
    pub(super) updated: bool,
    /// Whether the batch, too, is not there.
    pub(super) without_batch: bool,
    pub(super) meter: Arc<dyn Meter>,
    pub(super) device: Device,
    pub(super) check: bool,
    /// Whether memory is the process's own, which is read at no cost.
    pub(super) on_host: bool,
    /// Whether steps are compared with their recordings.
    pub(super) compare: bool,
    /// Keeps pools within the budget.
    pub(super) room: Option<Arc<Room>>,
}

impl Planning {
    /// The same for another budget.
    pub(super) fn with_budget(&self, budget: Option<Bytes>, wanted: Wanted) -> Self {
        let planning = Self {
            budget,
            wanted,
            ..self.clone()
        };
        Self {
            room: planning.new_room().map(Arc::new),
            ..planning
        }
    }

    /// What keeps pools within the budget, where it bounds them.
    pub(super) fn new_room(&self) -> Option<Room> {
        let budget = self.budget.filter(|_| self.bounds_pools())?;
        let for_pools = Bytes(budget.0.saturating_sub(self.meter.context_bytes().0));
        Some(Room::of_bytes(self.meter.clone(), for_pools))
    }

    /// The same with parameters of a recording updated when `update` says.
    pub(super) fn with_update(
        &self,
        update: Update,
        recording: &Recording,
    ) -> Result<Self, RecordError> {
        let updates = match &self.either {
            Some(either) => either.of(update),
            None if self.update == update => &self.updates,
            None => {
                return Err(RecordError::OtherUpdate {
                    update: self.update,
                });
            }
        };
        Ok(Self {
            update,
            optimizer: updates.together(update, recording),
            updates: updates.clone(),
            ..self.clone()
        })
    }

    /// Has each rank make the updates of its own parameters alone, or all of them, from now on.
    pub(super) fn set_shards(&mut self, shards: Option<&Shards>, recording: &Recording) {
        let either = self.either.iter_mut();
        let all = either.flat_map(|either| [&mut either.after, &mut either.in_backward]);
        for updates in all.chain([&mut self.updates]) {
            updates.shards = shards.cloned();
        }
        self.optimizer = self.updates.together(self.update, recording);
    }

    /// What an exchange between ranks holds while the step runs, and not while the optimizer updates.
    fn staging(&self, recording: &Recording) -> Bytes {
        match self.shared && self.on_host {
            true => staging(recording, self.update, self.updates.most_temporary()),
            false => Bytes::ZERO,
        }
    }

    /// Whether the bytes that count are those that pools reserve.
    fn bounds_pools(&self) -> bool {
        self.count == Count::Reserved && self.has_pools()
    }

    /// Whether the step runs on a GPU.
    fn has_pools(&self) -> bool {
        self.meter.read().reserved_bytes.is_some()
    }

    /// Fails where an allocation failed, or the process holds more than its budget: what runs on takes still more.
    pub(super) fn check_memory(&self) -> Result<(), RecordError> {
        if let Some(failure) = self.meter.failure() {
            return Err(RecordError::OutOfMemory(failure));
        }
        // Pools, whose reading waits for queued work, are kept within theirs by `room`.
        let budget = self.budget.filter(|_| self.on_host);
        match budget.map(|budget| (self.in_use(), budget)) {
            Some((in_use, budget)) if in_use > budget => {
                Err(RecordError::OverBudget { in_use, budget })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn room(&self) -> Option<&Room> {
        self.room.as_deref()
    }

    fn in_use(&self) -> Bytes {
        self.meter.read().in_use_bytes
    }

    /// What the device loses beside live buffers: the driver's context, padding, and one tensor that a queue frees
    /// late.
    fn beside_buffers(&self, graph: &Graph) -> Bytes {
        if !self.bounds_pools() {
            return Bytes::ZERO;
        }
        const PADDING_BYTES: u64 = 512;
        let largest = graph.tensors.iter().filter(|tensor| !tensor.given);
        let largest = largest.map(|tensor| tensor.bytes).max().unwrap_or_default();
        self.meter.context_bytes() + largest + Bytes(graph.tensors.len() as u64 * PADDING_BYTES / 2)
    }
}

impl<A> Measured<A> {
    /// Runs the recording a few times. No random number is drawn, and parameters and statistics stay as they are.
    pub(super) fn new(
        planning: &Planning,
        given: Vec<(usize, DispatchTensor)>,
        (recording, auxiliary): (Recording, A),
        shapes: Vec<(Shape, DType)>,
        record_time: Duration,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RecordError> {
        let meter = &*planning.meter;
        let (first, offloaded) = first_program(&recording, planning)?;
        let first = Prepared::new(&recording, first, offloaded);
        let start = || started(&recording, given.clone());
        RecordError::of_device(&recording, meter)?;
        let costs = Costs::measured(&recording, &first, start, planning, progress);
        let _ = planning.device.sync();
        RecordError::of_device(&recording, meter)?;
        let costs = costs?.with_updates(planning.updates.clone());
        if planning.has_pools() {
            choosing::note(&recording);
        }
        drop(given);
        Ok(Self {
            shapes,
            recording,
            auxiliary,
            record_time,
            costs,
        })
    }

    fn batch_bytes(&self) -> Bytes {
        let inputs = self.recording.inputs.iter();
        let bytes = inputs.map(|input| Bytes(self.recording.tensors.value_bytes(*input)));
        bytes.sum()
    }

    /// What gradients' storage takes: of views, that behind them, which is counted once.
    fn gradient_bytes(&self, graph: &Graph) -> Bytes {
        let (gradients, _) = gradients(&self.recording);
        let roots = graph.roots();
        let storage: HashSet<TensorId> = gradients.iter().map(|one| roots[one.index()]).collect();
        let storage = storage.into_iter();
        storage.map(|root| graph.tensors[root.index()].bytes).sum()
    }

    /// What gradients' storage takes beyond their numbers.
    fn beside_gradients(&self, graph: &Graph) -> Bytes {
        let gradients = self
            .recording
            .parameters
            .iter()
            .filter_map(|one| one.gradient);
        let numbers = gradients.map(|one| Bytes(self.recording.tensors.value_bytes(one)));
        self.gradient_bytes(graph) - numbers.sum()
    }

    /// What the step holds that is neither the program's nor the process's: constants, views, tables.
    fn own_bytes(&self) -> Bytes {
        let constants = self.recording.constants.iter();
        let constants: u64 = constants
            .map(|(tensor, _)| self.recording.tensors.value_bytes(*tensor))
            .sum();
        let given = self.recording.given().count() as u64;
        let made = self.recording.tensors.len() as u64 - given;
        Bytes(constants + given * GIVEN_BYTES + made * MADE_BYTES) + self.costs.beside_tensors()
    }
}

/// A plan for a measured recording, with what is in use now.
///
/// # Errors
///
/// If none fits: with a budget that was tried and works now.
pub(super) fn planned<A>(
    planning: &Planning,
    measured: Rc<Measured<A>>,
) -> Result<Planned<A>, RecordError> {
    let refused = match planned_once(planning, measured.clone()) {
        Err(RecordError::Infeasible { budget, smallest }) => (budget, smallest),
        other => return other,
    };
    let (budget, mut smallest) = refused;
    for _ in 0..ROUNDS {
        // A plan takes memory too, which is known when it is made.
        let larger = planning.with_budget(Some(smallest), planning.wanted.clone());
        match planned_once(&larger, measured.clone()) {
            Err(RecordError::Infeasible { smallest: more, .. }) => {
                smallest = more.max(smallest) + Bytes(smallest.0 / 64);
            }
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    // Another measurement may find some bytes more.
    let smallest = smallest + Bytes(smallest.0 / 256);
    Err(RecordError::Infeasible { budget, smallest })
}

fn planned_once<A>(
    planning: &Planning,
    measured: Rc<Measured<A>>,
) -> Result<Planned<A>, RecordError> {
    let asked = planning.budget.unwrap_or(Bytes::MAX);
    // All bytes below are without the reserve.
    let budget = planning.budget.map_or(Bytes::MAX, without_reserve);
    // What burn's graph keeps until the next backward, and what a queue frees late, is not there for long.
    free_dead_nodes(&planning.device);
    planning.meter.trim();
    // On the processor a plan takes of the memory that it plans.
    let mut of_plan = Bytes::ZERO;
    let mut smallest = Bytes::ZERO;
    for _ in 0..ROUNDS {
        let before = planning.in_use();
        let mut graph = measured.costs.graph(&measured.recording, Bytes::ZERO);
        let beside = planning.beside_buffers(&graph);
        let batch = match planning.without_batch {
            true => measured.batch_bytes(),
            false => Bytes::ZERO,
        };
        let base = before + of_plan + planning.later + batch;
        let staging = planning.staging(&measured.recording);
        let optimizer = planning.optimizer;
        // State that the first update makes of gradients has their storage until the second.
        let state = match (planning.updated, planning.updates.keeps_storage) {
            (true, _) => Bytes::ZERO,
            (false, false) => optimizer.state_bytes,
            (false, true) => optimizer.state_bytes + measured.beside_gradients(&graph),
        };
        graph.fixed_bytes = base + staging + measured.own_bytes() + state + beside;
        let gradients = match planning.update {
            Update::After => measured.gradient_bytes(&graph),
            Update::InBackward => Bytes::ZERO,
        };
        let after = (gradients + optimizer.temp_bytes).max(planning.between);
        let updating = base + beside + state + after;
        let request = (planning.budget, planning.slots, planning.elsewhere);
        let (plan, plain) = chosen(&graph, updating, &planning.wanted, request, planning.link)?;
        let (plain_peak, plain_time) = (plain.peak.max(updating), plain.time);
        drop(plain);
        let GraphPlan {
            program,
            simulated,
            planner,
            schedule,
            offloaded,
            on_device,
        } = plan;
        let (spans, timetables) = {
            let linked = graph.linked(&offloaded, planning.link.as_ref());
            let linked = linked.map_err(GraphPlanError::from)?;
            let spans = super::staged::stages(&graph).spans(&linked, &program);
            let of =
                |graph: &Graph, program: &Program| timetable(&measured.recording, graph, program);
            let timetables = match planning.shared {
                true => Some([of(&linked, &program), of(&graph, &plain_order(&graph)?)]),
                false => None,
            };
            (spans, timetables)
        };
        let mut planned = Planned {
            timetables,
            offload: planning
                .link
                .map(|link| Offload::new(&simulated, offloaded.len(), on_device, link)),
            prepared: Prepared::new(&measured.recording, program, offloaded),
            predicted_peak: simulated.peak.max(updating),
            predicted_time: simulated.time,
            repeated: simulated.repeated,
            fixed_bytes: graph.fixed_bytes,
            update_bytes: updating,
            base,
            optimizer_state: state,
            plain_peak,
            plain_time,
            planner,
            schedule,
            spans,
            beside,
            measured: measured.clone(),
        };
        // What is left is the plan.
        drop((graph, simulated));
        let takes = planning.in_use() - before;
        let uncounted = takes - of_plan;
        planned.base += uncounted;
        planned.fixed_bytes += uncounted;
        planned.update_bytes += uncounted;
        planned.predicted_peak += uncounted;
        planned.plain_peak += uncounted;
        let offload = planned.offload.as_mut();
        if let Some(other) = offload.and_then(|offload| offload.on_device.as_mut()) {
            other.peak += uncounted;
        }
        if planned.predicted_peak <= budget {
            return Ok(planned);
        }
        smallest = planned.predicted_peak;
        // The same again, with what it takes counted.
        of_plan = takes + Bytes(takes.0 / 16);
    }
    Err(RecordError::Infeasible {
        budget: asked,
        smallest: with_reserve(smallest),
    })
}

/// When a program hands over the gradients of a recording's parameters, by the parameters' places, and takes means over
/// ranks.
pub(super) fn timetable(recording: &Recording, graph: &Graph, program: &Program) -> Timetable {
    let (gradients, places) = gradients(recording);
    let means = recording.synchronised().map(|(place, values)| {
        // Each with how many ranks have failed.
        let bytes = Bytes(((values + 1) * VALUE) as u64);
        (OperationId(place as u32), bytes)
    });
    let mut timetable = Timetable::new(graph, program, &gradients, &means.collect());
    for one in &mut timetable.handed {
        one.gradient = places[one.gradient];
    }
    timetable
}

/// The plan that is wanted, and what the plain order takes. `updating` is in use after the step. The budget
/// includes the reserve.
///
/// # Errors
///
/// If the plan does not fit: with the smallest budget that one does.
pub(super) fn chosen(
    graph: &Graph,
    updating: Bytes,
    wanted: &Wanted,
    (budget, slots, elsewhere): (Option<Bytes>, usize, Option<PlanElsewhere>),
    link: Option<Link>,
) -> Result<(GraphPlan, Simulated), RecordError> {
    let within = budget.map(without_reserve);
    let infeasible = |smallest: Bytes| RecordError::Infeasible {
        budget: budget.unwrap_or(Bytes::MAX),
        smallest: with_reserve(smallest.max(updating)),
    };
    let plan = match wanted.plan(graph, within, slots, elsewhere, link) {
        Ok(plan) if within.is_none_or(|within| updating <= within) => GraphPlan {
            on_device: plan.on_device.map(|other| {
                let peak = other.peak.max(updating);
                OnDevice {
                    peak: match other.time {
                        Some(_) => peak,
                        None => with_reserve(peak),
                    },
                    ..other
                }
            }),
            ..plan
        },
        Ok(plan) => return Err(infeasible(plan.simulated.peak)),
        Err(GraphPlanError::Infeasible { smallest, .. }) => return Err(infeasible(smallest)),
        Err(error) => return Err(error.into()),
    };
    let plain = simulate(graph, &plain_order(graph)?);
    Ok((plan, plain))
}

/// The order in which the operations were recorded.
fn plain_order(graph: &Graph) -> Result<Program, RecordError> {
    Program::recorded(graph).map_err(|error| RecordError::Capture(error.to_string()))
}

/// Share of a budget that plans do not get: what a step takes varies a little from run to run, by the scratch of kernels
/// whose threads happen to be busy together. Seen: up to 0.2%.
const RESERVE: f64 = 0.01;

fn without_reserve(budget: Bytes) -> Bytes {
    Bytes((budget.0 as f64 * (1.0 - RESERVE)) as u64)
}

/// The smallest budget that leaves `bytes` without its reserve.
fn with_reserve(bytes: Bytes) -> Bytes {
    Bytes((bytes.0 as f64 / (1.0 - RESERVE)).ceil() as u64 + 1)
}

/// The leanest program from another process: asked for what cannot be, a planner says what can.
fn leanest_elsewhere(graph: &Graph, plan: PlanElsewhere) -> Option<Program> {
    let within = |budget| plan(graph, &GraphRequest::within(budget));
    match within(Bytes(1))? {
        Err(GraphPlanError::Infeasible { smallest, .. }) => Some(within(smallest)?.ok()?.program),
        _ => None,
    }
}

/// What is measured, and which tensors it moves to the host: the plan that is wanted whatever memory there is, else the
/// plain order where it surely fits, else the leanest program.
fn first_program(
    recording: &Recording,
    planning: &Planning,
) -> Result<(Program, Vec<TensorId>), RecordError> {
    let budget = planning.budget.or(planning.free).unwrap_or(Bytes::MAX);
    let costs = Costs::from_shapes(recording).with_updates(planning.updates.clone());
    let mut graph = costs.graph(recording, planning.in_use());
    graph.fixed_bytes += planning.beside_buffers(&graph);
    let choosing = planning.bounds_pools() && choosing::count(recording, &mut graph);
    let elsewhere = planning.elsewhere;
    if planning.wanted != GraphPlanner::Auto.into()
        && let Ok(plan) =
            planning
                .wanted
                .plan(&graph, None, planning.slots, elsewhere, planning.link)
        && plan.simulated.repeated + plan.offloaded.len() > 0
        && plan.simulated.peak + Bytes(SCRATCH_BYTES) <= budget
    {
        return Ok((plan.program, plan.offloaded));
    }
    let wrong = |error: &dyn std::fmt::Display| RecordError::Capture(error.to_string());
    let plain = Program::recorded(&graph).map_err(|error| wrong(&error))?;
    let peak = simulate(&graph, &plain).peak;
    if ((peak.0 + SCRATCH_BYTES) as f64) <= budget.0 as f64 * SURELY {
        return Ok((plain, Vec::new()));
    }
    let elsewhere = elsewhere.filter(|_| !choosing);
    if let Some(leanest) = elsewhere.and_then(|plan| leanest_elsewhere(&graph, plan)) {
        return Ok((leanest, Vec::new()));
    }
    let leanest = smallest_program(&graph, None).map_err(|error| wrong(&error))?;
    let fits = ((leanest.simulated.peak.0 + SCRATCH_BYTES) as f64) <= budget.0 as f64 * SURELY;
    let leanest = match planning.link.filter(|_| !fits) {
        Some(link) => smallest_program(&graph, Some(&link)).map_err(|error| wrong(&error))?,
        None => leanest,
    };
    match planning.budget.filter(|_| choosing) {
        Some(budget) if leanest.simulated.peak > budget => Err(RecordError::Choosing {
            budget,
            needed: leanest.simulated.peak,
        }),
        _ => Ok((leanest.program, leanest.offloaded)),
    }
}
