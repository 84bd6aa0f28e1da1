//! A recorded step with its plans, which runs instead of `forward` and `backward`.

mod plans;
mod run;

use std::{cell::RefCell, marker::PhantomData, rc::Rc};

use burn::module::Module;
use rekindle_plan::{
    Bytes, OptimizerCost, Planner,
    graph::{Graph, Program},
};

use super::{
    Comparison, RecordError,
    options::Planning,
    plan_summary::PlanSummary,
    planned::PlannedRecording,
    profile::StepProfile,
    ranks::{StepRanks, failures},
    staged::{SpanChange, StagedPlan},
    update::Update,
    ways::How,
};
use crate::{
    reduce::{Reducer, Shards},
    step_result::StepResult,
    tensor_tree::TensorTree,
};

/// A training step that runs within its budget.
///
/// Created by [`Recorded::within`](super::Recorded::within) and similar methods. It holds no parameters:
/// [`run`](Self::run) receives the current model.
///
/// It stays on its thread: it is neither `Send` nor `Sync`, since burn's interpreter and the stored plans are shared by `Rc`.
pub struct Step<M, I, R: StepResult, F> {
    step: F,
    planning: Planning,
    /// Whether memory is read after every span.
    watched: bool,
    /// Those that share the step.
    ranks: Option<StepRanks>,
    state: RefCell<State<R::Auxiliary>>,
    types: PhantomData<fn(&M, I)>,
}

struct State<A> {
    /// The most recently used first.
    plans: Vec<Rc<PlannedRecording<A>>>,
    steps: u64,
    /// The next step that is compared with its recording.
    compare_next: u64,
    /// How often a step differed from its recording although its batch had the same shapes.
    changed: u64,
    /// The growth in bytes for which a step was last planned again.
    grown: Option<Bytes>,
}

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    pub(super) fn new(step: F, planning: Planning, first: PlannedRecording<R::Auxiliary>) -> Self {
        let compares = planning.options.comparison != Comparison::Never;
        Self {
            step,
            planning,
            watched: false,
            ranks: None,
            state: RefCell::new(State {
                plans: vec![Rc::new(first)],
                steps: 0,
                compare_next: if compares { 1 } else { u64::MAX },
                changed: 0,
                grown: None,
            }),
            types: PhantomData,
        }
    }

    /// A step shared by ranks, after all ranks have planned it.
    pub(super) fn shared(
        step: Result<Self, RecordError>,
        reducer: Reducer,
    ) -> Result<Self, RecordError> {
        if let (_, Some(error)) = failures(&reducer, 0, step.as_ref().err().cloned()) {
            return Err(error);
        }
        let step = step?;
        let device = &step.planning.device;
        let ranks = StepRanks::agreed(reducer, &step.state.borrow().plans[0], device);
        step.planning.meter.trim();
        Ok(Self {
            ranks: Some(ranks?),
            ..step
        })
    }

    /// The step with its first plan, or the error of any of its ranks, which all make theirs.
    pub(super) fn planned_first(
        mut self,
        budget: Option<Bytes>,
        planner: Planner,
    ) -> Result<Self, RecordError> {
        let planned = self.plan_in(How::Together, budget, planner.into(), false);
        let failed = match &self.ranks {
            Some(ranks) => failures(&ranks.reducer, 0, planned.err()).1,
            None => planned.err(),
        };
        failed.map_or(Ok(self), Err)
    }

    /// Sets this rank's share of the samples, from the next step on. The default is 1 divided by the number of ranks. A
    /// rank without samples sets 0, and runs the step on any batch.
    pub fn set_share(&mut self, share: f64) {
        if let Some(ranks) = &mut self.ranks {
            ranks.share = share;
        }
    }

    /// The plan of the last step, or of the first if none ran.
    pub fn plan(&self) -> PlanSummary {
        let planned = &self.state.borrow().plans[0];
        planned.in_numbers(&self.planning, self.ranks.as_ref())
    }

    /// When the step updates its parameters: use [`run`](Self::run) for updates after the step, and
    /// [`run_updating`](Self::run_updating) for updates in the backward pass.
    pub fn update(&self) -> Update {
        self.planning.way.update
    }

    /// The assignment of parameters to ranks, if they divide the optimizer's state in this plan.
    #[doc(hidden)]
    pub fn shards(&self) -> Option<Shards> {
        self.planning.updates().shards
    }

    /// Sets whether the next steps read memory after every [`Span`](rekindle_plan::graph::Span) of their program, for
    /// [`Output::spans`](super::Output::spans), which takes longer.
    pub fn set_watched(&mut self, on: bool) {
        self.watched = on;
    }

    /// Sets whether values are checked: see [`with_finite_check`](super::Recorded::with_finite_check).
    #[doc(hidden)]
    pub fn set_finite_check(&mut self, on: bool) {
        self.planning.options.check = on;
    }

    /// The plan of the last step, or of the first if none ran, in terms of the model's stages.
    pub fn staged_plan(&self) -> StagedPlan {
        StagedPlan::new(&self.state.borrow().plans[0])
    }

    /// The tensors that each span of the last step's program, or of the first if none ran, makes and frees, and those
    /// that go with the update after it.
    #[doc(hidden)]
    pub fn changes(&self) -> Vec<SpanChange> {
        self.state.borrow().plans[0].changes()
    }

    /// The measured step, for planning elsewhere.
    #[doc(hidden)]
    pub fn profile(&self) -> StepProfile {
        let planned = &self.state.borrow().plans[0];
        let autodiff = self.planning.autodiff_time(&planned.measured.recording);
        StepProfile::new(planned, autodiff)
    }

    /// The measured cost of the optimizer's step, with the state that it did not have when the step was recorded.
    #[doc(hidden)]
    pub fn optimizer_cost(&self) -> OptimizerCost {
        let state = self.state.borrow();
        self.planning.optimizer(&state.plans[0].measured.recording)
    }

    /// Makes room in a GPU's pools for bytes that the program is about to allocate outside the step, such as a batch:
    /// pools that might exceed the budget are trimmed. No effect without a budget or without pools.
    #[doc(hidden)]
    pub fn make_room(&self, bytes: Bytes) {
        self.planning.room.make(bytes);
    }

    /// Number of times the pools were trimmed to stay within the budget.
    #[doc(hidden)]
    pub fn trims(&self) -> u64 {
        self.planning.room.trims()
    }

    /// The measured graph and the program of the last step, for inspection and for planning again.
    pub fn graph(&self) -> (Graph, Program) {
        let state = self.state.borrow();
        let planned = &state.plans[0];
        (planned.linked(), planned.prepared.program.clone())
    }
}
