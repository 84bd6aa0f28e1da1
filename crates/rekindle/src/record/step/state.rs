//! A step and its state.

use std::{cell::RefCell, rc::Rc};

use rekindle_plan::Bytes;

use crate::{
    record::{options::Planning, planned::PlannedRecording, ranks::StepRanks},
    step_result::StepResult,
};

/// A training step that runs within its budget.
///
/// Created by [`Recorded::within`](crate::record::Recorded::within) and similar methods. It holds no parameters:
/// [`run`](Self::run) receives the current model.
pub struct Step<M, I, R: StepResult, F> {
    pub(super) step: F,
    pub(super) planning: Planning,
    /// Those that share the step.
    pub(super) ranks: Option<StepRanks>,
    pub(super) state: RefCell<State<R::Auxiliary>>,
    pub(super) types: std::marker::PhantomData<fn(&M, I)>,
}

pub(super) struct State<A> {
    /// The most recently used first.
    pub(super) plans: Vec<Rc<PlannedRecording<A>>>,
    pub(super) steps: u64,
    pub(super) compare_next: u64,
    /// How often a step differed from its recording although its batch had the same shapes.
    pub(super) changed: u64,
    /// The growth in bytes for which a step was last planned again.
    pub(super) grown: Option<Bytes>,
}

/// A plan and its peak with what is in use now.
pub(super) type Current<A> = (Rc<PlannedRecording<A>>, Bytes);
