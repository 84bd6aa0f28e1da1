//! A recording that was measured, and a plan of it that is ready to run.

use std::{borrow::Cow, cell::Cell, rc::Rc, time::Duration};

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

/// The phase of a pass that follows on another phase.
pub(super) fn phase_of(pass: SpanPass, before: Phase) -> Phase {
    match (pass, before) {
        (SpanPass::Forward, phase) => phase,
        // Parts of the loss may run again in the backward.
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
    pub(super) record_time: Duration,
    pub(super) costs: Costs,
}

/// A recording that is ready to run.
pub(super) struct PlannedRecording<A> {
    pub(super) measured: Rc<MeasuredRecording<A>>,
    pub(super) prepared: Prepared,
    /// In numbers, without the exchange.
    pub(super) numbers: StepPlan,
    /// The schedule over stages that the program comes from, where it comes from one.
    pub(super) schedule: Option<Schedule>,
    /// The program in passes of stages.
    pub(super) spans: Vec<Span>,
    /// Resident all along, as it was planned.
    pub(super) fixed_bytes: Bytes,
    /// In use at most while the optimizer updates.
    pub(super) update_bytes: Bytes,
    /// What is in use beside the step's own tensors when it was planned, without the optimizer's state.
    pub(super) base: Bytes,
    /// Counted, but no live buffers: the driver's context, and what pools add.
    pub(super) beside: Bytes,
    pub(super) optimizer_state: Bytes,
    /// When gradients are handed over, by the plan and by the plain order, where ranks share the step: by the places of
    /// their parameters.
    pub(super) timetables: Option<[Timetable; 2]>,
    /// Whether the program's kernels are chosen, where it runs on a GPU: for steps that nobody watches, and for others.
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

    /// The turns of the program after which memory is read: where a phase ends, or each span if they are watched.
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

    /// The measured graph that was planned.
    pub(super) fn graph(&self) -> Graph {
        let MeasuredRecording {
            costs, recording, ..
        } = &*self.measured;
        costs.graph(recording, self.fixed_bytes)
    }

    /// The same with transfers of the tensors that go to the host: the program's graph.
    pub(super) fn linked(&self) -> Graph {
        let graph = self.graph();
        let linked = graph.linked(
            self.prepared.offloaded(),
            self.numbers.offload.as_ref().map(|offload| &offload.link),
        );
        // That they can be moved was found when the plan was made.
        linked.map(Cow::into_owned).unwrap_or(graph)
    }

    /// How much more is in use beside the step than when it was planned, the optimizer's state apart.
    pub(super) fn growth(&self, meter: &dyn Meter) -> Bytes {
        meter.read().in_use_bytes - (self.base + self.optimizer_state)
    }
}
