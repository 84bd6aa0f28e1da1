//! A measured recording, and a plan for it that is ready to run.

use std::{borrow::Cow, cell::Cell, rc::Rc};

use burn::tensor::{DType, DispatchTensor, Shape};
use rekindle_plan::{
    Bytes, Schedule,
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
pub(super) struct MeasuredRecording<A> {
    pub(super) shapes: Vec<(Shape, DType)>,
    pub(super) recording: Recording,
    pub(super) auxiliary: A,
    pub(super) costs: Costs,
    /// Peak of the bytes in use on the host while a step is compared, above those before.
    pub(super) comparison_bytes: Bytes,
}

/// A recording that is ready to run.
pub(super) struct PlannedRecording<A> {
    pub(super) measured: Rc<MeasuredRecording<A>>,
    pub(super) prepared: Prepared,
    /// The plan in numbers, without the exchange.
    pub(super) numbers: StepPlan,
    /// The schedule over stages from which the program was made, if any.
    pub(super) schedule: Option<Schedule>,
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
    /// Whether the program's kernels are chosen, if it runs on a GPU: for unwatched and for watched steps.
    pub(super) chosen: [Cell<bool>; 2],
}

impl<A> PlannedRecording<A> {
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

    /// Growth of the bytes in use besides the step since planning, without the optimizer's state.
    pub(super) fn growth(&self, meter: &dyn Meter) -> Bytes {
        meter.read().in_use_bytes - (self.base + self.optimizer_state)
    }
}
