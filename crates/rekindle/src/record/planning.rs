//! From a recording to a plan within a budget: shapes, measurement, program.
//!
//! 1. A first program is found from shapes alone: the plain order, or the program with the smallest peak if the plain
//!    order may not fit.
//! 2. It runs a few times, and every operation is measured.
//! 3. The measured graph is planned for the budget minus the process's other memory.

use std::{cell::Cell, rc::Rc};

use rekindle_plan::{
    Bytes,
    graph::{
        Graph, GraphPlan, GraphPlanError, Link, OnDevice, OperationId, Program, Simulated,
        Timetable, simulate,
    },
};

use super::{
    RecordError,
    buckets::{VALUE, gradients},
    options::{Planning, RESERVE, without_reserve},
    planned::{MeasuredRecording, PlannedRecording},
    program::Prepared,
    recording::Recording,
    step_plan::StepPlan,
    update::Update,
    wanted::{PlanElsewhere, Wanted},
};
use crate::graph::free_dead_nodes;

/// Maximum number of planning rounds. Planning repeats because the plan itself takes memory.
const ROUNDS: usize = 3;

/// A plan for a measured recording, given the bytes in use now.
///
/// # Errors
///
/// If no plan fits: with a smallest budget, tested, that is feasible now.
pub(super) fn planned<A>(
    planning: &Planning,
    measured: Rc<MeasuredRecording<A>>,
) -> Result<PlannedRecording<A>, RecordError> {
    let refused = match planned_once(planning, measured.clone()) {
        Err(RecordError::Infeasible { budget, smallest }) => (budget, smallest),
        other => return other,
    };
    let (budget, mut smallest) = refused;
    for _ in 0..ROUNDS {
        // The plan itself takes memory, which is only known after planning.
        let larger = planning.with_budget(Some(smallest), planning.wanted.clone());
        match planned_once(&larger, measured.clone()) {
            Err(RecordError::Infeasible { smallest: more, .. }) => {
                smallest = more.max(smallest) + Bytes(smallest.0 / 64);
            }
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    // Another measurement may give a few bytes more.
    let smallest = smallest + Bytes(smallest.0 / 256);
    Err(RecordError::Infeasible { budget, smallest })
}

fn planned_once<A>(
    planning: &Planning,
    measured: Rc<MeasuredRecording<A>>,
) -> Result<PlannedRecording<A>, RecordError> {
    let asked = planning.budget.unwrap_or(Bytes::MAX);
    // All bytes below are without the reserve.
    let budget = planning
        .budget
        .map_or(Bytes::MAX, |budget| without_reserve(budget, RESERVE));
    // Do not count what burn's graph keeps until the next backward pass, and buffers that a queue frees late.
    free_dead_nodes(&planning.device);
    planning.meter.trim();
    // On the CPU, a plan occupies a part of the memory for which it plans.
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
        let optimizer = planning.optimizer(&measured.recording);
        // State that the first update creates from gradients keeps their storage until the second update.
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
        let between = base + beside + state;
        let updating = between + after;
        // A step that is compared with its recording is so before it runs.
        let apart = between + after.max(measured.comparison_bytes);
        let request = (planning.budget, planning.slots, planning.elsewhere);
        let (plan, plain) = chosen(&graph, apart, &planning.wanted, request, planning.link)?;
        let operations = measured.recording.operations.len();
        let beside_run = [apart, updating];
        let numbers = StepPlan::new(
            &plan,
            &plain,
            planning.budget,
            beside_run,
            operations,
            planning.link,
        );
        drop(plain);
        let GraphPlan {
            program,
            schedule,
            offloaded,
            ..
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
        let mut planned = PlannedRecording {
            timetables,
            numbers,
            prepared: Prepared::new(&measured.recording, program, offloaded),
            fixed_bytes: graph.fixed_bytes,
            update_bytes: apart,
            base,
            optimizer_state: state,
            schedule,
            spans,
            beside,
            measured: measured.clone(),
            chosen: [const { Cell::new(false) }; 2],
        };
        // The remaining difference is the plan's memory.
        drop(graph);
        let takes = planning.in_use() - before;
        let uncounted = takes - of_plan;
        planned.base += uncounted;
        planned.fixed_bytes += uncounted;
        planned.update_bytes += uncounted;
        planned.numbers.add_held(uncounted);
        if planned.numbers.predicted_peak <= budget {
            return Ok(planned);
        }
        smallest = planned.numbers.predicted_peak;
        // Plan again, with the plan's own memory counted.
        of_plan = takes + Bytes(takes.0 / 16);
    }
    Err(RecordError::Infeasible {
        budget: asked,
        smallest: with_reserve(smallest),
    })
}

/// When a program completes the gradients of a recording's parameters, by the parameters' indices, and computes means
/// over ranks.
pub(super) fn timetable(recording: &Recording, graph: &Graph, program: &Program) -> Timetable {
    let (gradients, places) = gradients(recording);
    let means = recording.synchronised().map(|(place, values)| {
        // Each mean also carries the number of failed ranks.
        let bytes = Bytes(((values + 1) * VALUE) as u64);
        (OperationId(place as u32), bytes)
    });
    let mut timetable = Timetable::new(graph, program, &gradients, &means.collect());
    for one in &mut timetable.handed {
        one.gradient = places[one.gradient];
    }
    timetable
}

/// The requested plan, and the cost of the plain order. `updating` bytes are in use before or after the step. The budget includes
/// the reserve.
///
/// # Errors
///
/// If the plan does not fit: with the smallest budget for which a plan exists.
pub(super) fn chosen(
    graph: &Graph,
    updating: Bytes,
    wanted: &Wanted,
    (budget, slots, elsewhere): (Option<Bytes>, usize, Option<PlanElsewhere>),
    link: Option<Link>,
) -> Result<(GraphPlan, Simulated), RecordError> {
    let within = budget.map(|budget| without_reserve(budget, RESERVE));
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

/// The smallest budget that leaves `bytes` after the reserve is subtracted.
fn with_reserve(bytes: Bytes) -> Bytes {
    Bytes((bytes.0 as f64 / (1.0 - RESERVE)).ceil() as u64 + 1)
}
