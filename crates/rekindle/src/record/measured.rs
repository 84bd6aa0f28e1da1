//! A measured recording: the first program that runs, and the step's other memory.
//!
//! 1. A first program is found from shapes alone: the plain order, or a plan that surely fits if that may not.
//! 2. It runs a few times, and every operation is measured. The measured graph is [planned](super::planned).

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use burn::tensor::{DType, DispatchTensor, Shape};
use rekindle_plan::{
    Bytes, Planner,
    graph::{PlanError, Program, TensorId, simulate},
};

use super::{
    RecordError,
    choosing::{self, Runs},
    cost::{Costs, Known},
    given::started,
    options::{Planning, Wanted, fitting},
    places::Place,
    program::{Prepared, plain_order},
    recording::Recording,
};

/// Share of a budget within which the plain order must fit to be the program that is measured: a GPU's temporary bytes are
/// not known yet.
const SURELY: f64 = 0.8;

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
    /// What a [look](super::bridge::look) at the step gives, if it was looked at.
    pub(super) look: Cell<Option<u64>>,
}

impl<A> MeasuredRecording<A> {
    /// A recording for batches of these shapes, with estimated costs.
    pub(super) fn new(
        (recording, auxiliary): (Recording, A),
        shapes: Vec<(Shape, DType)>,
        comparison_bytes: Bytes,
        planning: &Planning,
    ) -> Self {
        Self {
            shapes,
            costs: Costs::new(&recording, planning),
            recording,
            auxiliary,
            comparison_bytes,
            took: Duration::ZERO,
            look: Cell::new(None),
        }
    }

    /// Runs the recording a few times. No random number is drawn, and parameters and statistics stay as they are. On the
    /// CPU this stops where the budget has no room for the next operation; then plans are made from
    /// [estimates](super::kernels) of what did not run, and refused with the smallest budget. What is known is not measured
    /// again: if all is, nothing runs.
    pub(super) fn measured(
        self,
        planning: &Planning,
        given: Vec<(usize, DispatchTensor)>,
        known: &Known,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RecordError> {
        let began = Instant::now();
        let Self {
            recording,
            costs: estimated,
            ..
        } = self;
        // Where a budget is exceeded already, all is measured, so that the smallest one is known.
        let open = |budget: &Bytes| *budget >= planning.in_use();
        let planning = &planning.with_budget(planning.budget.filter(open), planning.wanted.clone());
        let meter = &*planning.meter;
        recording.check_device(meter)?;
        let prepared = |planning: &Planning| {
            let (first, offloaded) = first_program(&recording, &estimated, planning)?;
            let first = Prepared::new(&recording, first, offloaded);
            for runs in [Runs::Singly, Runs::Together(&[])] {
                let program = (&recording, &first);
                choosing::choose(program, &estimated, || Ok(given.clone()), planning, runs)?;
            }
            Ok(first)
        };
        let first = match (prepared(planning), planning.options.link) {
            // Tensors that are fetched from the host need other kernels, so try without a link.
            (Err(RecordError::Choosing { .. }), Some(_)) => {
                let mut without = planning.clone();
                without.options.link = None;
                prepared(&without)
            }
            (first, _) => first,
        }?;
        let start = || started(&recording, given.clone());
        let costs = estimated.measured(&recording, &first, start, (planning, known), progress);
        let _ = planning.device.sync();
        recording.check_device(meter)?;
        let costs = costs?;
        if !planning.on_host {
            choosing::note(&recording, &first, Runs::Singly);
            choosing::note(&recording, &first, Runs::Together(&[]));
        }
        drop(given);
        Ok(Self {
            recording,
            costs,
            took: began.elapsed(),
            ..self
        })
    }

    /// A recording of a smaller batch, with costs from these; `None` if it is not one of the same operations on tensors that
    /// are not larger.
    pub(super) fn smaller(&self, other: &Self, on_host: bool) -> Option<Self>
    where
        A: Clone,
    {
        let recordings = (&self.recording, &other.recording);
        let (larger, smaller) = (&self.recording.tensors, &other.recording.tensors);
        let is_smaller = |tensor| smaller.value_bytes(tensor) <= larger.value_bytes(tensor);
        let same = other.recording.takes_programs_of(&self.recording);
        let costs = (same && (0..smaller.len()).all(is_smaller))
            .then(|| self.costs.of_smaller(recordings, on_host))?;
        Some(Self {
            costs: costs?,
            ..other.clone()
        })
    }

    /// Whether this is a recording for batches of these shapes and modules with these places.
    pub(super) fn is_of(&self, shapes: &[(Shape, DType)], places: &[Place]) -> bool {
        self.shapes == shapes && self.recording.is_of(places)
    }

    pub(super) fn batch_bytes(&self) -> Bytes {
        let inputs = self.recording.inputs.iter();
        let bytes = inputs.map(|input| Bytes(self.recording.tensors.value_bytes(*input)));
        bytes.sum()
    }

    /// Bytes that the step holds besides the tensors of this program: constants, views, tables.
    pub(super) fn own_bytes(&self, program: &Program) -> Bytes {
        let constants = self.recording.constants.iter();
        let constants: u64 = constants
            .map(|(tensor, _)| self.recording.tensors.value_bytes(*tensor))
            .sum();
        Bytes(constants) + self.costs.beside_tensors(&self.recording, program)
    }
}

/// The program to measure, and the tensors that it moves to the host: a plan that is wanted regardless of memory, else
/// the plain order if it surely fits, else a plan that surely fits, or comes nearest to it.
fn first_program(
    recording: &Recording,
    costs: &Costs,
    planning: &Planning,
) -> Result<(Program, Vec<TensorId>), RecordError> {
    let budget = planning.budget.or(planning.free).unwrap_or(Bytes::MAX);
    let mut graph = costs.graph(recording, planning.in_use());
    let plain = plain_order(&graph)?;
    graph.fixed_bytes += planning.beside_buffers(&graph) + costs.beside_tensors(recording, &plain);
    let plan = |wanted: &Wanted, within, link| {
        wanted.plan(&graph, within, planning.options.program.elsewhere, link)
    };
    let link = planning.options.link;
    if planning.wanted != Planner::Auto.into()
        && let Ok(plan) = plan(&planning.wanted, None, link)
        && plan.simulated.repeated + plan.offloaded.len() > 0
        && plan.simulated.peak <= budget
    {
        return Ok((plan.program, plan.offloaded));
    }
    let surely = Bytes((budget.0 as f64 * SURELY) as u64);
    if simulate(&graph, &plain).peak <= surely {
        return Ok((plain, Vec::new()));
    }
    let auto = Planner::Auto.into();
    // A link's measured times would stand beside those of a nominal machine, so tensors go to the host only if they must.
    let plan = match (plan(&auto, Some(surely), None), link) {
        (Err(PlanError::Infeasible { .. }), Some(_)) => plan(&auto, Some(surely), link),
        (planned, _) => planned,
    };
    let (plan, _) = fitting(plan, Bytes::ZERO, None)?;
    Ok((plan.program, plan.offloaded))
}
