//! The plans of a step: stored by the shapes of their batches, compared with the step, and made again when needed.

use std::{cell::Cell, collections::HashMap, rc::Rc, time::Duration};

use burn::{
    module::{Module, ParamId},
    tensor::DispatchTensor,
};
use rekindle_plan::{Bytes, Planner};

use super::{State, Step};
use crate::{
    record::{
        Comparison, RecordError, bridge,
        cost::Known,
        given::{given, shapes},
        measured::MeasuredRecording,
        options::{Now, Planning, Wanted, without_reserve},
        places::Place,
        planned::{Current, PlannedRecording, planned},
        recording::Recording,
        ways::{How, planned_in},
    },
    size::Budget,
    step_result::StepResult,
    tensor_tree::TensorTree,
};

/// Bytes of stored recordings with plans, for batches of several shapes; within a budget for the host, at most this share of
/// it.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_SHARE: u64 = 4;
/// Stored recordings, at least: two batch shapes may take turns.
const LEAST_KEPT: usize = 2;

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// Plans the step again for another budget, without measuring it again, for example to compare several. A
    /// percentage such as `"60%"` refers to the plan's [`plain_peak`](crate::record::PlanSummary::plain_peak).
    ///
    /// # Errors
    ///
    /// See [`within`](crate::record::Recorded::within); after an error the step is unchanged.
    pub fn set_budget(&mut self, budget: impl Budget, planner: Planner) -> Result<(), RecordError> {
        let bytes = budget.size()?.of(Some(self.plan().plain_peak), None)?;
        self.plan_in(How::Together, Some(bytes), planner.into(), true)
    }

    /// Plans in the first of some ways that gives a plan.
    pub(in crate::record) fn plan_in(
        &mut self,
        how: How,
        budget: Option<Bytes>,
        wanted: Wanted,
        without_batch: bool,
    ) -> Result<(), RecordError> {
        let state = self.state.get_mut();
        let now = Now {
            updated: (state.steps > 0).then(|| self.planning.state_on_host()),
            without_batch,
            expected: None,
        };
        let planning = Planning {
            until_now: match how {
                How::InRun => Bytes::ZERO,
                How::Together | How::Alone => self.planning.peak_until_now(),
            },
            ..self.planning.with_budget(budget, wanted)
        };
        // One that was measured, not estimated from a larger one.
        let own = state.plans.iter().position(|plan| plan.credit.is_none());
        let mut measured = state.plans[own.unwrap_or_default()].measured.clone();
        // Drop the old plan, so that the new one does not count its memory.
        state.plans.clear();
        match planned_in(how, &planning, now, &mut measured, self.ranks.as_ref()) {
            Ok((planning, plan)) => {
                state.plans.push(Rc::new(plan));
                self.planning = planning;
                Ok(())
            }
            Err(error) => {
                measured.update_as(&self.planning);
                let plain = self.planning.with_budget(None, Planner::None.into());
                let before = planned(&self.planning, now, measured.clone());
                let before = before.or_else(|_| planned(&plain, now, measured))?;
                state.plans.push(Rc::new(before));
                Err(error)
            }
        }
    }

    /// The number of stored recordings, and how often a step differed from its recording although its batch had the
    /// same shapes: then something other than the batch and the parameters changes what it computes, such as a number.
    pub fn recordings(&self) -> (usize, u64) {
        let state = self.state.borrow();
        (state.plans.len(), state.changed)
    }

    /// The plan for this batch, stored or new, and its peak given the bytes in use now.
    pub(super) fn plan_for(
        &self,
        model: &M,
        batch: &I,
    ) -> Result<Current<R::Auxiliary>, RecordError> {
        let shapes = shapes(batch);
        // The list of places is dropped before memory is read: no plan counts it.
        let is_of =
            |plan: &Rc<PlannedRecording<_>>, places: &[Place]| plan.measured.is_of(&shapes, places);
        let mut state = self.state.borrow_mut();
        state.steps += 1;
        let updated = state.steps > 1;
        let first = &state.plans[0];
        let expected = first.base + first.optimizer_state;
        let now = Now {
            updated: updated.then(|| self.planning.state_on_host()),
            expected: updated.then_some(expected),
            without_batch: false,
        };
        let known = {
            let places = Place::of(model);
            state.plans.iter().position(|plan| is_of(plan, &places))
        };
        let on_host = self.planning.on_host.then_some(&*self.planning.meter);
        let peak = || on_host.map_or(Bytes::ZERO, |meter| meter.read().peak_in_use_bytes);
        let mut begun = Bytes::ZERO;
        let mut auxiliary_now = None;
        let whole = state.steps >= state.compare_next;
        let looks = self.planning.options.comparison == Comparison::EveryStep;
        let place = if let Some(place) = known.filter(|_| !whole && !looks) {
            place
        } else {
            let mut before = Bytes::ZERO;
            if let Some(meter) = on_host {
                if let Some(place) = known {
                    state.plans[..=place].rotate_right(1);
                    self.fit(&mut state, now, model, batch)?;
                    begun = peak();
                }
                meter.start_interval();
                before = meter.read().in_use_bytes;
            }
            let places = Place::of(model);
            // After a change, the whole is compared in every step.
            let look = match looks && state.changed == 0 {
                true => Some(bridge::look(model, &places, batch, &self.step)?),
                false => None,
            };
            let hash = look.as_ref().map(|look| look.0);
            let begins_as = |plan: &Rc<PlannedRecording<_>>| {
                hash.is_some() && plan.measured.look.get() == hash && is_of(plan, &places)
            };
            let same = state.plans.iter().position(begins_as);
            if let Some((place, look)) = same.filter(|_| !whole).zip(look) {
                begun = begun.max(peak());
                auxiliary_now = Some(look.1);
                place
            } else {
                let recorded =
                    bridge::take(model, &places, batch, &self.step, self.planning.way.update)?;
                begun = begun.max(peak());
                let same = |plan: &Rc<PlannedRecording<_>>| {
                    is_of(plan, &places) && plan.measured.recording.same_as(&recorded.0)
                };
                let place = if let Some(place) = state.plans.iter().position(same) {
                    auxiliary_now = Some(recorded.1);
                    place
                } else {
                    recorded.0.check_trains()?;
                    state.changed += u64::from(known.is_some());
                    let in_numbers = |plan: &Rc<PlannedRecording<_>>| {
                        is_of(plan, &places) && plan.differs_in_numbers(&recorded.0)
                    };
                    let differs = state.plans.iter().position(in_numbers);
                    drop(places);
                    if let Some(place) = differs {
                        state.renumber(place, recorded);
                        place
                    } else {
                        if known.is_some() {
                            log::warn!(
                                "the training step does something else than when it was recorded (a branch of Rust code?): \
                             recorded and planned again"
                            );
                        } else {
                            log::info!(
                                "a batch of other shapes, or other parameters that train: the step is recorded and planned \
                             for them"
                            );
                        }
                        let bytes = peak() - before;
                        self.add(&mut state, now, model, batch, recorded, bytes)?;
                        0
                    }
                };
                state.plans[place].measured.look.set(hash);
                place
            }
        };
        // The first plan is the most recently used.
        state.plans[..=place].rotate_right(1);
        if !state.plans[0].spend() {
            let replaced = self.replace(&mut state, now, model, batch);
            replaced
                .unwrap_or_else(|error| log::info!("the plan of a larger batch stays: {error}"));
        }
        let predicted_peak = self.fit(&mut state, now, model, batch)?;
        Ok(Current {
            plan: state.plans[0].clone(),
            predicted_peak,
            begun,
            auxiliary: auxiliary_now,
        })
    }

    /// Measures and plans a recording that no stored plan is for. Its plan is the first then. To compare it takes so many
    /// bytes.
    fn add(
        &self,
        state: &mut State<R::Auxiliary>,
        now: Now,
        model: &M,
        batch: &I,
        recorded: (Recording, R::Auxiliary),
        comparison_bytes: Bytes,
    ) -> Result<(), RecordError> {
        let later = state.new_bytes(&self.planning, &recorded.0)?;
        let mut planning = self.planning.clone();
        planning.options.later += later;
        let now = Now {
            expected: now.expected.map(|bytes| bytes + later),
            ..now
        };
        let comparison_bytes = match self.planning.options.comparison {
            Comparison::Never => Bytes::ZERO,
            _ => comparison_bytes,
        };
        let given = given(&recorded.0, model, batch);
        let new = MeasuredRecording::new(recorded, shapes(batch), comparison_bytes, &planning);
        let plan = match made_by_larger(&state.plans, &planning, now, &new) {
            Some(plan) => plan,
            None => own(&mut state.plans, &planning, now, given, new)?,
        };
        state.plans.insert(0, Rc::new(plan));
        self.keep(state);
        Ok(())
    }

    /// Measures the first of the stored recordings, which has the program of a larger batch, and plans it.
    fn replace(
        &self,
        state: &mut State<R::Auxiliary>,
        now: Now,
        model: &M,
        batch: &I,
    ) -> Result<(), RecordError> {
        let served = (*state.plans[0].measured).clone();
        let given = given(&served.recording, model, batch);
        state.plans[0] = Rc::new(own(&mut state.plans, &self.planning, now, given, served)?);
        Ok(())
    }

    /// Drops the least recently used plans beyond the bytes that they may take.
    fn keep(&self, state: &mut State<R::Auxiliary>) {
        let budget = self.planning.budget.filter(|_| self.planning.on_host);
        let most = budget.map_or(KEPT_BYTES, |budget| KEPT_BYTES.min(budget.0 / KEPT_SHARE));
        let mut bytes = Bytes::ZERO;
        let fit = state.plans.iter().take_while(|plan| {
            bytes += plan.bytes();
            bytes.0 <= most
        });
        let kept = fit.count().max(LEAST_KEPT);
        state.plans.truncate(kept);
    }

    /// Plans the first of the stored recordings again if its plan does not fit what is in use now, and returns its
    /// predicted peak.
    fn fit(
        &self,
        state: &mut State<R::Auxiliary>,
        now: Now,
        model: &M,
        batch: &I,
    ) -> Result<Bytes, RecordError> {
        // A quarter of the reserve is for what varies from run to run, the rest for growth.
        let planning = &self.planning;
        let reserve = planning.wanted.reserve() / 4.0;
        let most = planning
            .budget
            .map(|budget| without_reserve(budget, reserve));
        let fits = |peak| most.is_none_or(|most| peak <= most);
        let (mut growth, mut peak) = state.plans[0].grown(planning);
        if !fits(peak) {
            // A queue may have freed buffers that pools still count.
            planning.meter.trim();
            (growth, peak) = state.plans[0].grown(planning);
        }
        if fits(peak) {
            return Ok(peak);
        }
        log::info!("{growth} more are in use than when the step was planned: planned again");
        state.grown = Some(growth);
        if state.plans[0].credit.is_some() {
            self.replace(state, now, model, batch)?;
            return Ok(state.plans[0].numbers.predicted_peak);
        }
        // Drop the old plan first, because it takes memory.
        let measured = state.plans.remove(0).measured.clone();
        let again = planned_beside(&mut state.plans, 0, planning, now, measured.clone());
        let again = again.or_else(|error| {
            // Use the plain order as a placeholder until there is enough memory: the step is planned again before it
            // runs.
            let plain = planning.with_budget(None, Planner::None.into());
            state
                .plans
                .insert(0, Rc::new(planned(&plain, now, measured)?));
            Err(error)
        })?;
        let peak = again.numbers.predicted_peak;
        state.plans.insert(0, Rc::new(again));
        Ok(peak)
    }

    /// Decides when the step is compared with its recording as a whole next.
    pub(super) fn schedule_comparison(&self, step_time: Duration) {
        let mut state = self.state.borrow_mut();
        if state.steps >= state.compare_next {
            let (how, [_, whole]) = (
                self.planning.options.comparison,
                self.planning.comparison_times,
            );
            state.compare_next = how.next(whole, state.steps, state.changed > 0, step_time);
        }
    }
}

impl<A> State<A> {
    /// Replaces a stored recording by one that [differs in numbers](PlannedRecording::differs_in_numbers).
    fn renumber(&mut self, place: usize, recorded: (Recording, A)) {
        let measured = Rc::get_mut(&mut self.plans[place]);
        let measured = measured.and_then(|plan| Rc::get_mut(&mut plan.measured));
        if let Some(measured) = measured {
            (measured.recording, measured.auxiliary) = recorded;
        }
    }

    /// Bytes of the optimizer's state that comes into use with a recording, if steps have run: of parameters that train
    /// now and did not before.
    fn new_bytes(&self, planning: &Planning, recording: &Recording) -> Result<Bytes, RecordError> {
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

/// A plan beside the stored ones. On the host they take a part of the budget: if none fits, only the first `least` of them
/// are kept.
fn planned_beside<A>(
    stored: &mut Vec<Rc<PlannedRecording<A>>>,
    least: usize,
    planning: &Planning,
    now: Now,
    measured: Rc<MeasuredRecording<A>>,
) -> Result<PlannedRecording<A>, RecordError> {
    match planned(planning, now, measured.clone()) {
        Err(RecordError::Infeasible { .. }) if planning.on_host && stored.len() > least => {
            stored.truncate(least);
            planned(planning, now, measured)
        }
        plan => plan,
    }
}

/// A plan for a new recording with the program of a larger batch, if there is one and it fits, until an own plan is worth
/// its time.
fn made_by_larger<A: Clone>(
    stored: &[Rc<PlannedRecording<A>>],
    planning: &Planning,
    now: Now,
    new: &MeasuredRecording<A>,
) -> Option<PlannedRecording<A>> {
    let mut own = stored.iter().filter(|plan| plan.credit.is_none());
    let (larger, smaller) =
        own.find_map(|plan| Some((plan, plan.measured.smaller(new, planning.on_host)?)))?;
    let wanted = Wanted::Operations {
        operations: larger.prepared.program.operations().to_vec(),
        offloaded: larger.prepared.offloaded.clone(),
    };
    let by_larger = planning.with_budget(planning.budget, wanted);
    let mut plan = planned(&by_larger, now, Rc::new(smaller)).ok()?;
    // What threads take in its first run, they keep.
    let scratch = |plan: &PlannedRecording<A>| Bytes(plan.measured.costs.scratch_bytes);
    plan.base += scratch(&plan) - scratch(larger);
    plan.numbers.planner = larger.numbers.planner;
    plan.numbers.segments.clone_from(&larger.numbers.segments);
    plan.credit = Some(Cell::new(larger.took + larger.measured.took));
    Some(plan)
}

/// Measures a recording, except what is known from those that are stored, and plans it.
fn own<A>(
    stored: &mut Vec<Rc<PlannedRecording<A>>>,
    planning: &Planning,
    now: Now,
    given: Vec<(usize, DispatchTensor)>,
    new: MeasuredRecording<A>,
) -> Result<PlannedRecording<A>, RecordError> {
    let mut known = Known::default();
    for plan in stored.iter() {
        plan.measured.costs.tell(&mut known);
    }
    let measured = new.measured(planning, given, &known, &mut |_, _| {})?;
    drop(known);
    planned_beside(stored, 1, planning, now, Rc::new(measured))
}
