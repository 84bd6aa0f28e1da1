//! From a recording to a plan within a budget: shapes, measurement, program.
//!
//! 1. A first program is found from shapes alone: the plain order, or the program with the smallest peak if the plain
//!    order may not fit.
//! 2. It runs a few times, and every operation is measured.
//! 3. The measured graph is planned for the budget minus the process's other memory.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use rekindle_plan::{
    Bytes,
    graph::{
        Graph, GraphPlan, GraphPlanError, Link, OnDevice, OperationId, Program, Timetable, simulate,
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
use crate::checkpoint::free_dead_nodes;

/// Maximum number of planning rounds. Planning repeats because the plan itself takes memory.
const ROUNDS: usize = 4;

/// A plan for a measured recording, given the bytes in use now.
///
/// # Errors
///
/// If no plan fits, with the smallest budget: that of the plan with the smallest peak, ready to run.
pub(super) fn planned<A>(
    planning: &Planning,
    measured: Rc<MeasuredRecording<A>>,
) -> Result<PlannedRecording<A>, RecordError> {
    // All bytes below are without the reserve.
    let budget = planning
        .budget
        .map(|budget| without_reserve(budget, planning.wanted.reserve()));
    // Do not count what burn's graph keeps until the next backward pass, and buffers that a queue frees late.
    free_dead_nodes(&planning.device);
    planning.meter.trim();
    // On the CPU, a plan occupies a part of the memory for which it plans.
    let mut of_plan = Bytes::ZERO;
    let mut round = 0;
    let began = Instant::now();
    loop {
        round += 1;
        let before = planning.in_use();
        let mut graph = measured.costs.graph(&measured.recording, Bytes::ZERO);
        let beside = planning.beside_buffers(&graph);
        let batch = match planning.without_batch {
            true => measured.batch_bytes(),
            false => Bytes::ZERO,
        };
        // A part of what comes later may be in use now.
        let expected = planning.expected.unwrap_or(Bytes::MAX).max(before);
        let base = (before + planning.options.later).min(expected) + batch;
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
        let after = (gradients + optimizer.temp_bytes).max(planning.options.between);
        let between = base + beside + state;
        let updating = between + after;
        // A step that is compared with its recording is so before it runs.
        let apart = between + after.max(measured.comparison_bytes);
        // In the last round, or if nothing can fit, the plan with the smallest peak.
        let within = budget.map(|budget| match round < ROUNDS && apart + of_plan <= budget {
            true => budget - of_plan,
            false => Bytes::ZERO,
        });
        let how = (planning.options.elsewhere, planning.options.link);
        let (plan, fits) = chosen(&graph, apart, &planning.wanted, within, how)?;
        let plain = simulate(&graph, &plain_order(&graph)?);
        let floor = (!fits).then(|| floor(&measured.recording, &plan, apart));
        let operations = measured.recording.operations.len();
        let beside_run = [apart, updating];
        let numbers = StepPlan::new(
            &plan,
            &plain,
            planning.budget,
            beside_run,
            operations,
            planning.options.link,
        );
        drop(plain);
        let GraphPlan {
            program,
            schedule,
            offloaded,
            ..
        } = plan;
        // Its actions are dropped here: what the plan takes is read below.
        let segments = schedule.and_then(|schedule| schedule.segments());
        let (spans, timetables) = {
            let linked = graph.linked(&offloaded, planning.options.link.as_ref());
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
            segments,
            spans,
            beside,
            measured: measured.clone(),
            took: Duration::ZERO,
            credit: None,
            chosen: [const { Cell::new(false) }; 2],
        };
        // The remaining difference is the plan's memory.
        drop(graph);
        let takes = planning.in_use() - before;
        planned.base += takes;
        planned.fixed_bytes += takes;
        planned.update_bytes += takes;
        planned.numbers.add_held(takes);
        let peak = planned.numbers.predicted_peak;
        if budget.is_none_or(|budget| peak <= budget) {
            planned.took = began.elapsed();
            return Ok(planned);
        }
        if !fits {
            // Another measurement needs room, too, and another process, with a folder for example, may hold more.
            let measuring = measured.costs.measuring_bytes - (base + staging + state);
            let smallest = peak.max(peak - takes + measuring);
            return Err(RecordError::Infeasible {
                budget: planning.budget.unwrap_or(Bytes::MAX),
                smallest: with_reserve(smallest + Bytes(smallest.0 / 64)),
                floor,
            });
        }
        // Plan again, with the plan's own memory counted.
        of_plan = takes + Bytes(takes.0 / 16);
    }
}

/// Where a plan has its peak; `apart` bytes are in use before or after the step.
fn floor(recording: &Recording, plan: &GraphPlan, apart: Bytes) -> String {
    let run = &plan.simulated;
    let operation = plan.program.operations().get(run.peak_step);
    match operation.map(|one| one.index()) {
        Some(number) if run.peak > apart && number < recording.operations.len() => {
            let made = recording.operations.get(number).outputs().next();
            let made = made.map(|output| recording.describe(output));
            let made = made.unwrap_or_default();
            format!("while it makes {}", made.trim_end_matches(','))
        }
        Some(_) if run.peak > apart => "while it updates a parameter or moves a tensor".to_owned(),
        _ => "before or after its operations: compared with its recording, or updating parameters"
            .to_owned(),
    }
}

/// When a program completes the gradients of a recording's parameters, by the parameters' indices, and computes means
/// over ranks.
fn timetable(recording: &Recording, graph: &Graph, program: &Program) -> Timetable {
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

/// The requested plan within a number of bytes, or the one with the smallest peak, and whether it fits. `apart` bytes are
/// in use before or after the step.
pub(super) fn chosen(
    graph: &Graph,
    apart: Bytes,
    wanted: &Wanted,
    within: Option<Bytes>,
    (elsewhere, link): (Option<PlanElsewhere>, Option<Link>),
) -> Result<(GraphPlan, bool), RecordError> {
    let planned = wanted.plan(graph, within, elsewhere, link);
    let (plan, fits) = fitting(planned, apart, within)?;
    let on_device = plan.on_device.map(|other| {
        let peak = other.peak.max(apart);
        OnDevice {
            peak: match other.time {
                Some(_) => peak,
                None => with_reserve(peak),
            },
            ..other
        }
    });
    Ok((GraphPlan { on_device, ..plan }, fits))
}

/// A planner's plan, or its one with the smallest peak, and whether it fits; `apart` bytes are in use before or after the
/// step.
pub(super) fn fitting(
    planned: Result<GraphPlan, GraphPlanError>,
    apart: Bytes,
    within: Option<Bytes>,
) -> Result<(GraphPlan, bool), RecordError> {
    match planned {
        Ok(plan) => Ok((plan, within.is_none_or(|within| apart <= within))),
        Err(GraphPlanError::Infeasible { leanest, .. }) => Ok((*leanest, false)),
        Err(error) => Err(error.into()),
    }
}

/// The order in which the operations were recorded.
pub(super) fn plain_order(graph: &Graph) -> Result<Program, RecordError> {
    Program::recorded(graph).map_err(|error| RecordError::Capture(error.to_string()))
}

/// The smallest budget that leaves `bytes` after the reserve is subtracted.
#[must_use]
pub fn with_reserve(bytes: Bytes) -> Bytes {
    Bytes((bytes.0 as f64 / (1.0 - RESERVE)).ceil() as u64 + 1)
}
