//! A step and its state.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use burn::module::ParamId;
use rekindle_plan::Bytes;

use crate::{
    record::{
        RecordError, options::Planning, planned::PlannedRecording, ranks::StepRanks,
        recording::Recording,
    },
    step_result::StepResult,
};

/// A training step that runs within its budget.
///
/// Created by [`Recorded::within`](crate::record::Recorded::within) and similar methods. It holds no parameters:
/// [`run`](Self::run) receives the current model.
pub struct Step<M, I, R: StepResult, F> {
    pub(super) step: F,
    pub(super) planning: Planning,
    /// Whether memory is read after every span.
    pub(super) watched: bool,
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

impl<A> State<A> {
    /// Replaces a stored recording by one that [differs in numbers](PlannedRecording::differs_in_numbers).
    pub(super) fn renumber(&mut self, place: usize, recorded: (Recording, A)) {
        let measured = Rc::get_mut(&mut self.plans[place]);
        let measured = measured.and_then(|plan| Rc::get_mut(&mut plan.measured));
        if let Some(measured) = measured {
            (measured.recording, measured.auxiliary) = recorded;
        }
    }

    /// Bytes of the optimizer's state that comes into use with a recording, if steps have run: of parameters that train
    /// now and did not before.
    pub(super) fn new_bytes(
        &self,
        planning: &Planning,
        recording: &Recording,
    ) -> Result<Bytes, RecordError> {
        let recordings = self.plans.iter().map(|plan| &plan.measured.recording);
        let known = recordings.flat_map(|one| &one.parameters);
        let known: HashMap<ParamId, bool> = known.fold(HashMap::new(), |mut known, one| {
            *known.entry(one.id).or_default() |= one.trains;
            known
        });
        let mut bytes = Bytes::ZERO;
        for one in &recording.parameters {
            match known.get(&one.id) {
                Some(trained) if self.steps > 1 && one.trains && !trained => {
                    bytes += planning.updates().of(one.id, false).state_bytes;
                }
                Some(_) => {}
                None => {
                    let path = one.path.clone();
                    return Err(RecordError::Parameter { path });
                }
            }
        }
        Ok(bytes)
    }
}

/// What a step is to run.
pub(super) struct Current<A> {
    pub(super) plan: Rc<PlannedRecording<A>>,
    /// Its peak, given the bytes in use now.
    pub(super) predicted_peak: Bytes,
    /// Peak of the bytes in use on the host since the step began, while it was compared, recorded or planned.
    pub(super) begun: Bytes,
    /// The auxiliary output as the step has it now, with its own plain fields, if it was compared.
    pub(super) auxiliary: Option<A>,
}
