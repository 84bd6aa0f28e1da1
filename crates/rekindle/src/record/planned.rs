//! A plan for a measured recording, ready to run: made for a budget minus the process's other memory.

use std::{
    borrow::Cow,
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use burn::tensor::DispatchTensor;
use rekindle_plan::{
    Bytes, Seconds,
    graph::{Graph, GraphPlan, Link, PlanError, Span, SpanPass, Stages, Timetable, simulate},
};

use super::{
    RecordError,
    choosing::{self, Runs},
    leaf::free_dead_nodes,
    measured::MeasuredRecording,
    optimizer_state::StatePlan,
    options::{Now, Planning, fitting, with_reserve, without_reserve},
    plan_summary::{PlanSummary, StepExchange},
    program::{Prepared, plain_order},
    ranks::{StepRanks, timetable},
    recording::Recording,
    update::Update,
    update_costs::UpdateCosts,
};
use crate::{meter::Phase, reduce::shards::Shards};

/// The phase of a pass, given the phase before it.
pub(super) fn phase_of(pass: SpanPass, before: Phase) -> Phase {
    match (pass, before) {
        (SpanPass::Forward, phase) => phase,
        // Parts of the loss may be recomputed in the backward pass.
        (SpanPass::Loss, Phase::Forward) => Phase::Loss,
        (SpanPass::Loss, phase) => phase,
        (SpanPass::Recompute | SpanPass::Backward, _) => Phase::Backward,
    }
}

/// Maximum number of planning rounds. Planning repeats because the plan itself takes memory.
const ROUNDS: usize = 4;

/// Bytes that a stored plan takes on the host, for each operation, and for each distinct one: the recording, its costs,
/// and the program.
const OPERATION_BYTES: usize = 160;
const KIND_BYTES: usize = 1200;

/// A recording that is ready to run.
pub(super) struct PlannedRecording<A> {
    pub(super) measured: Rc<MeasuredRecording<A>>,
    pub(super) prepared: Prepared,
    /// The plan in numbers, without the exchange.
    pub(super) numbers: PlanSummary,
    /// The program divided into passes of stages.
    pub(super) spans: Vec<Span>,
    /// Bytes held permanently, according to the plan.
    pub(super) fixed_bytes: Bytes,
    /// Peak bytes in use during the optimizer's update.
    pub(super) update_bytes: Bytes,
    /// Bytes in use at planning besides the step's own tensors, without the optimizer's state.
    pub(super) base: Bytes,
    /// Counted bytes that are not in live buffers: the driver's context, and the overhead of pools.
    pub(super) beside: Bytes,
    pub(super) optimizer_state: Bytes,
    /// What the driver held besides the pools at planning, if the budget bounds that.
    driver: Bytes,
    /// When gradients are completed, in the plan and in the plain order, by the indices of their parameters, if ranks
    /// share the step.
    pub(super) timetables: Option<[Timetable; 2]>,
    /// The time that planning took.
    pub(super) took: Duration,
    /// For the program of a larger batch: how much time it may still lose to the plain order, until a plan is made for
    /// this batch.
    pub(super) credit: Option<Cell<Duration>>,
    /// Whether the program's kernels are chosen, if it runs on a GPU: for unwatched and for watched steps.
    pub(super) chosen: [Cell<bool>; 2],
}

/// A plan that a step runs now.
pub(super) struct Current<A> {
    pub(super) plan: Rc<PlannedRecording<A>>,
    /// Its peak, given the bytes in use now.
    pub(super) predicted_peak: Bytes,
    /// Peak of the bytes in use on the host since the step began, while it was compared, recorded or planned.
    pub(super) begun: Bytes,
    /// The auxiliary output as the step has it now, with its own plain fields, if it was compared.
    pub(super) auxiliary: Option<A>,
}

impl<A> PlannedRecording<A> {
    /// Bytes that it takes on the host, about.
    pub(super) fn bytes(&self) -> Bytes {
        let operations = &self.measured.recording.operations;
        let bytes = operations.len() * OPERATION_BYTES + operations.kinds().len() * KIND_BYTES;
        Bytes(bytes as u64)
    }

    /// Whether a recording of the same shapes differs from this one at most in numbers, which change no cost and no plan,
    /// and can take its place: nobody runs this one.
    pub(super) fn differs_in_numbers(self: &Rc<Self>, recording: &Recording) -> bool {
        let own = &self.measured;
        Rc::strong_count(self) == 1
            && Rc::strong_count(own) == 1
            && recording.takes_programs_of(&own.recording)
            && own.costs.are_of(recording)
    }

    /// Spends what a step loses to the plain order by the program of a larger batch. Whether there was enough.
    pub(super) fn spend(&self) -> bool {
        let lost = self.numbers.predicted_time.0 - self.numbers.plain_time.0;
        let lost = Duration::try_from_secs_f64(lost).unwrap_or_default();
        self.credit.as_ref().is_none_or(|credit| {
            let left = credit.get().checked_sub(lost);
            credit.set(left.unwrap_or_default());
            left.is_some()
        })
    }

    /// Chooses the program's kernels before its first run, or the first that is watched; `given` is there before the first
    /// operation.
    pub(super) fn choose_kernels(
        &self,
        planning: &Planning,
        watched: bool,
        given: impl Fn(&Recording) -> Result<Vec<(usize, DispatchTensor)>, RecordError>,
    ) -> Result<(), RecordError> {
        let chosen = &self.chosen[usize::from(watched)];
        if !chosen.get() {
            let MeasuredRecording {
                recording, costs, ..
            } = &*self.measured;
            let program = (recording, &self.prepared);
            let waits = self.waits(watched);
            let runs = Runs::Together(&waits);
            choosing::choose(program, costs, || given(recording), planning, runs)?;
            chosen.set(true);
        }
        Ok(())
    }

    /// The turns of the program after which memory is read: at the end of each phase, or of each span if the step is
    /// watched.
    fn waits(&self, watched: bool) -> Vec<usize> {
        let mut phase = Phase::Forward;
        let mut waits = Vec::new();
        for span in &self.spans {
            let before = phase;
            phase = phase_of(span.pass, phase);
            if before != phase {
                waits.extend(span.steps.start.checked_sub(1));
            }
            if watched {
                waits.extend(span.steps.end.checked_sub(1));
            }
        }
        waits.dedup();
        waits
    }

    /// The plan in numbers, with what ranks that share the step send each other.
    pub(super) fn in_numbers(&self, planning: &Planning, ranks: Option<&StepRanks>) -> PlanSummary {
        let recording = &self.measured.recording;
        let way = &planning.way;
        let exchange = |shards: Option<&Shards>| {
            let sent = recording.trained().filter(|_| shards.is_some());
            let sent: Vec<Bytes> = sent.map(|(_, bytes)| bytes).collect();
            match ranks.zip(self.timetables.as_ref()) {
                Some((ranks, both)) => both.each_ref().map(|one| Some(ranks.predicted(one, &sent))),
                None => [None; 2],
            }
        };
        let updates = planning.updates();
        let state_bytes = |shards: Option<&Shards>| {
            let updates = UpdateCosts {
                shards: shards.cloned(),
                on_host: None,
                ..updates.clone()
            };
            updates.together(way.update, recording).state_bytes
        };
        let added = |exchange: Option<StepExchange>| {
            exchange.map(|one| one.taken.added()).unwrap_or_default()
        };
        let [own, plain] = exchange(updates.shards.as_ref());
        let numbers = &self.numbers;
        let predicted_peak = numbers.predicted_peak.max(planning.until_now);
        // Of an optimizer that is divided already, the others' part was not measured.
        let whole = planning.either[way.update as usize].shards.is_none();
        let shards = planning.shards.as_ref().filter(|_| whole);
        PlanSummary {
            budget: planning.budget,
            predicted_peak,
            predicted_in_use: predicted_peak - self.beside,
            predicted_time: numbers.predicted_time + added(own),
            exchange: own,
            plain_peak: numbers.plain_peak.max(planning.until_now),
            plain_time: numbers.plain_time + added(plain) + planning.autodiff_time(recording),
            comparison_time: Seconds(planning.comparison_times[0].as_secs_f64()),
            in_backward_because: way.in_backward_because,
            state: shards.map(|shards| StatePlan {
                chosen: way.state,
                because: way.sharded_because,
                whole_bytes: state_bytes(None),
                sharded_bytes: state_bytes(Some(shards)),
                sharded_s: exchange(Some(shards))[0]
                    .map(|one| one.taken.parameters_s)
                    .unwrap_or_default(),
            }),
            ..numbers.clone()
        }
    }

    /// The measured graph used for planning.
    pub(super) fn graph(&self) -> Graph {
        let MeasuredRecording {
            costs, recording, ..
        } = &*self.measured;
        costs.graph(recording, self.fixed_bytes)
    }

    /// The program's graph: the measured graph with transfers of the offloaded tensors.
    pub(super) fn linked(&self) -> Graph {
        let graph = self.graph();
        let linked = graph.linked(
            &self.prepared.offloaded,
            self.numbers.offload.as_ref().map(|offload| &offload.link),
        );
        // Planning has checked that these tensors can be moved.
        linked.map(Cow::into_owned).unwrap_or(graph)
    }

    /// Growth of the bytes in use besides the step since planning, without the optimizer's state, and the predicted peak
    /// with it. What was to be there and is not, such as a batch that was counted twice, lowers the peak.
    pub(super) fn grown(&self, planning: &Planning) -> (Bytes, Bytes) {
        let in_use = planning.in_use();
        // Kernels that were loaded since, for example.
        let driver = planning.driver_bytes() - self.driver;
        let growth = in_use - (self.base + self.optimizer_state) + driver;
        let peak = self.numbers.predicted_peak + growth - (self.base - in_use);
        (growth, peak)
    }
}

/// A plan for a measured recording, given the bytes in use now.
///
/// # Errors
///
/// If no plan fits, with the smallest budget: that of the plan with the smallest peak, ready to run.
pub(super) fn planned<A>(
    planning: &Planning,
    now: Now,
    measured: Rc<MeasuredRecording<A>>,
) -> Result<PlannedRecording<A>, RecordError> {
    // All bytes below are without the reserve.
    let budget = planning
        .budget
        .map(|budget| without_reserve(budget, planning.wanted.reserve()));
    // Do not count what burn's graph keeps until the next backward pass, and buffers that a queue frees late.
    free_dead_nodes(&planning.device);
    planning.meter.release();
    // On the CPU, a plan occupies a part of the memory for which it plans.
    let mut of_plan = Bytes::ZERO;
    let mut round = 0;
    let began = Instant::now();
    loop {
        round += 1;
        let before = planning.in_use();
        let mut graph = measured.costs.graph(&measured.recording, Bytes::ZERO);
        let beside = planning.beside_buffers(&graph);
        let plain = plain_order(&graph)?;
        let own_of_plain = measured.own_bytes(&plain);
        let batch = match now.without_batch {
            true => measured.batch_bytes(),
            false => Bytes::ZERO,
        };
        // A part of what comes later may be in use now.
        let expected = now.expected.unwrap_or(Bytes::MAX).max(before);
        let on_host = planning.state_on_host();
        let there = now
            .updated
            .map_or([Bytes::ZERO; 2], |there| [there, on_host]);
        let [of_parts, of_sum] = measured.recording.of_parts(planning.options.parts);
        let later = planning.options.later + of_parts;
        let base = (before + later).min(expected) + there[0] - there[1] + batch;
        let staging = planning.staging(&measured.recording);
        let optimizer = planning.optimizer(&measured.recording);
        // State that the first update creates from gradients keeps their storage until the second update.
        let state = match (now.updated.is_some(), planning.updates().keeps_storage) {
            (true, _) => Bytes::ZERO,
            (false, false) => optimizer.state_bytes,
            (false, true) => optimizer.state_bytes + measured.recording.beside_gradients(&graph),
        };
        graph.fixed_bytes = base + staging + own_of_plain + state + beside;
        let gradients = match planning.way.update {
            Update::After => measured.recording.gradient_bytes(&graph),
            Update::InBackward => Bytes::ZERO,
        };
        let at_update = |temp_bytes: Bytes| {
            let update = gradients + temp_bytes.max(of_sum);
            update.max(planning.options.program.between)
        };
        let after = at_update(optimizer.temp_bytes);
        let between = base + beside + state;
        // A step that is compared with its recording is so before it runs.
        let apart = between + after.max(measured.comparison_bytes);
        // In the last round, or if nothing can fit, the plan with the smallest peak.
        let within = budget.map(|budget| match round < ROUNDS && apart + of_plan <= budget {
            true => budget - of_plan,
            false => Bytes::ZERO,
        });
        let (elsewhere, link) = (planning.options.program.elsewhere, planning.options.link);
        let room = link.map(|link| Link {
            host_bytes: link.host_bytes - on_host,
            ..link
        });
        let plan = planning.wanted.plan(&graph, within, elsewhere, room);
        let (mut plan, fits) = fitting(plan, apart, within)?;
        // The plain step keeps all state on the device.
        let mut whole = Cow::Borrowed(&graph);
        let mut temp_bytes = optimizer.temp_bytes;
        if planning.way.on_host.is_some() {
            let mut costs = measured.costs.clone();
            costs.updates.on_host = None;
            let together = costs
                .updates
                .together(planning.way.update, &measured.recording);
            temp_bytes = together.temp_bytes;
            whole = Cow::Owned(costs.graph(&measured.recording, graph.fixed_bytes + on_host));
        }
        let simulated = simulate(&whole, &plain);
        drop(whole);
        let updating = between + on_host + at_update(temp_bytes);
        // Another program makes and frees tensors at other times.
        let own = measured.own_bytes(&plan.program);
        for bytes in [&mut graph.fixed_bytes, &mut plan.simulated.peak] {
            *bytes = *bytes + own - own_of_plain;
        }
        let floor = (!fits).then(|| floor(&measured.recording, &plan, apart));
        let beside_run = [apart, updating];
        let mut numbers =
            PlanSummary::new(&plan, &simulated, &graph, planning.budget, beside_run, link);
        drop(simulated);
        if let (Some(offload), Some(state)) = (&mut numbers.offload, &planning.way.on_host) {
            offload.state_bytes = state.bytes;
            offload.state_s = state.seconds;
            if planning.way.update == Update::After {
                numbers.predicted_time += state.seconds;
            }
        }
        // Its schedule is not kept: what the plan takes is read below.
        drop(plan.schedule);
        let (program, offloaded) = (plan.program, plan.offloaded);
        let (spans, timetables) = {
            let linked = graph.linked(&offloaded, link.as_ref());
            let linked = linked.map_err(PlanError::from)?;
            let stages = Stages::of_graph(&graph);
            numbers.divide(stages.chain().stages.len());
            let spans = stages.spans(&linked, &program);
            let both = || {
                [(&*linked, &program), (&graph, &plain)]
                    .map(|(graph, program)| timetable(&measured.recording, graph, program))
            };
            (spans, planning.shards.is_some().then(both))
        };
        let mut planned = PlannedRecording {
            timetables,
            numbers,
            prepared: Prepared::new(&measured.recording, program, offloaded),
            fixed_bytes: graph.fixed_bytes,
            update_bytes: apart,
            base,
            optimizer_state: state,
            driver: planning.driver_bytes(),
            spans,
            beside,
            measured: measured.clone(),
            took: Duration::ZERO,
            credit: None,
            chosen: [const { Cell::new(false) }; 2],
        };
        // The remaining difference is the plan's memory.
        drop((graph, plain));
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
                // Memory is measured anew then: of tiny steps, 1% more was seen.
                smallest: with_reserve(smallest + Bytes(smallest.0 / 64)),
                floor,
            });
        }
        // Plan again, with the plan's own memory counted.
        of_plan = takes + Bytes(takes.0 / 16) + (own - own_of_plain);
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
