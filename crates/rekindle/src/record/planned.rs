//! A measured recording, and a plan for it that is ready to run.

use std::{borrow::Cow, cell::Cell, rc::Rc, time::Duration};

use burn::tensor::{DType, DispatchTensor, Shape};
use rekindle_plan::{
    Bytes, StageId,
    graph::{Graph, Span, SpanPass, Timetable},
};

use super::{
    RecordError,
    choosing::{self, Runs},
    measure::Costs,
    options::Planning,
    program::Prepared,
    recording::Recording,
    step_plan::StepPlan,
};
use crate::meter::{Meter, Phase};

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

/// A recording that was measured.
#[derive(Clone)]
pub(super) struct MeasuredRecording<A> {
    pub(super) shapes: Vec<(Shape, DType)>,
    pub(super) recording: Recording,
    pub(super) auxiliary: A,
    pub(super) costs: Costs,
    /// Peak of the bytes in use on the host while a step is compared, above those before.
    pub(super) comparison_bytes: Bytes,
    /// The time that measuring took.
    pub(super) took: Duration,
}

/// Bytes that a stored plan takes on the host, for each operation, and for each distinct one: the recording, its costs,
/// and the program.
const OPERATION_BYTES: usize = 160;
const KIND_BYTES: usize = 1200;

/// A recording that is ready to run.
pub(super) struct PlannedRecording<A> {
    pub(super) measured: Rc<MeasuredRecording<A>>,
    pub(super) prepared: Prepared,
    /// The plan in numbers, without the exchange.
    pub(super) numbers: StepPlan,
    /// First and last stage of each segment that is recomputed as a whole, if the program was made so.
    pub(super) segments: Option<Vec<(StageId, StageId)>>,
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
            self.prepared.offloaded(),
            self.numbers.offload.as_ref().map(|offload| &offload.link),
        );
        // Planning has checked that these tensors can be moved.
        linked.map(Cow::into_owned).unwrap_or(graph)
    }

    /// Growth of the bytes in use besides the step since planning, without the optimizer's state, and the predicted peak
    /// with it. What was to be there and is not, such as a batch that was counted twice, lowers the peak.
    pub(super) fn grown(&self, meter: &dyn Meter) -> (Bytes, Bytes) {
        let in_use = meter.read().in_use_bytes;
        let growth = in_use - (self.base + self.optimizer_state);
        let peak = self.numbers.predicted_peak + growth - (self.base - in_use);
        (growth, peak)
    }
}
