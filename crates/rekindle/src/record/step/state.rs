//! A step and what it knows.

use std::{cell::RefCell, rc::Rc};

use rekindle_plan::Bytes;

use crate::{
    record::{options::Planning, planned::PlannedRecording, ranks::StepRanks},
    step_result::StepResult,
};

/// A training step that runs inside its budget.
///
/// Made by [`Recorded::within`](crate::record::Recorded::within) and its siblings. It holds no parameter: [`run`](Self::run) is given the model of the
/// moment.
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
    /// How often a step differed from its recording though its batch's shapes were equal.
    pub(super) changed: u64,
    /// What more was in use when a step was last planned again for that.
    pub(super) grown: Option<Bytes>,
}

/// A plan and its peak with what is in use now.
pub(super) type Current<A> = (Rc<PlannedRecording<A>>, Bytes);
