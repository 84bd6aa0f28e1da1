//! A recorded step with its plans, which runs instead of `forward` and `backward`.

mod cache;
mod run;

use std::{cell::RefCell, collections::HashSet, marker::PhantomData, rc::Rc};

use burn::module::{Module, ParamId};
use rekindle_plan::{Bytes, Planner};

use super::{
    Comparison, RecordError,
    options::Planning,
    plan_summary::PlanSummary,
    planned::PlannedRecording,
    ranks::{StepRanks, failures},
    ways::How,
};
use crate::{reduce::Reducer, step_result::StepResult, tensor_tree::TensorTree};

/// A training step that runs within its budget.
///
/// Created by [`Recorded::within`](super::Recorded::within) and similar methods. It holds no parameters:
/// [`run`](Self::run) receives the current model.
///
/// It stays on its thread: it is neither `Send` nor `Sync`, since the stored plans are shared by `Rc`.
pub struct Step<M, I, R: StepResult, F> {
    step: F,
    pub(super) planning: Planning,
    /// Whether memory is read after every span.
    pub(super) watched: bool,
    /// Those that share the step.
    ranks: Option<StepRanks>,
    pub(super) state: RefCell<State<R::Auxiliary>>,
    types: PhantomData<fn(&M, I)>,
}

pub(super) struct State<A> {
    /// The most recently used first.
    pub(super) plans: Vec<Rc<PlannedRecording<A>>>,
    steps: u64,
    /// The next step that is compared with its recording.
    compare_next: u64,
    /// How often a step differed from its recording although its batch had the same shapes.
    changed: u64,
    /// The growth in bytes for which a step was last planned again.
    pub(super) grown: Option<Bytes>,
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

    /// The parameters whose optimizer state is to be in host memory between updates, from now until the next plan, by an
    /// optimizer that [can do that](super::Optimizer::movable_tensors).
    pub fn state_on_host(&self) -> HashSet<ParamId> {
        let on_host = self.planning.way.on_host.iter();
        on_host
            .flat_map(|one| one.parameters.keys().copied())
            .collect()
    }

    /// The plan of the last step, or of the first if none ran.
    pub fn plan(&self) -> PlanSummary {
        let planned = &self.state.borrow().plans[0];
        planned.in_numbers(&self.planning, self.ranks.as_ref())
    }
}
