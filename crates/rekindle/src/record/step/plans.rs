//! The plans of a step: stored by the shapes of their batches, compared with the step, and made again when needed.

use std::{rc::Rc, time::Duration};

use burn::module::Module;
use rekindle_plan::{
    Bytes,
    graph::{GraphPlanner, Link},
};

use super::state::{Current, State, Step};
use crate::{
    record::{
        Comparison, RecordError,
        bridge::{self, Taken},
        comparison::peak_of,
        given::{given, shapes},
        options::Planning,
        places::Place,
        planned::{MeasuredRecording, PlannedRecording},
        planning::planned,
        recording::Recording,
        update::Update,
        wanted::Wanted,
    },
    reduce::Shards,
    size::{Budget, Size},
    step_result::StepResult,
    tensor_tree::TensorTree,
};

/// Maximum number of stored recordings with plans, for batches of several shapes.
const KEPT: usize = 8;

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// Plans the step again for another budget, without measuring it again, for example to compare several. A
    /// percentage such as `"60%"` refers to the plan's [`plain_peak`](crate::record::StepPlan::plain_peak).
    ///
    /// # Errors
    ///
    /// See [`within`](crate::record::Recorded::within); after an error the step is unchanged.
    pub fn set_budget(
        &mut self,
        budget: impl Budget,
        planner: GraphPlanner,
    ) -> Result<(), RecordError> {
        self.plan_share(budget.size()?, planner, true)
    }

    /// Plans for a budget that may be a percentage; `without_batch` means that the batch is not allocated now.
    pub(in crate::record) fn plan_share(
        &mut self,
        budget: Size,
        planner: GraphPlanner,
        without_batch: bool,
    ) -> Result<(), RecordError> {
        let plain = self.plan().plain_peak;
        let bytes = budget.of(Some(plain))?;
        let planning = self.planning.with_budget(Some(bytes), planner.into());
        let planned = self.plan_by(planning, without_batch);
        planned.map_err(|error| match (budget, error) {
            (Size::Percent(percent), RecordError::Infeasible { budget, smallest }) => {
                RecordError::InfeasibleShare {
                    percent,
                    plain,
                    budget,
                    smallest,
                }
            }
            (_, error) => error,
        })
    }

    /// Like [`set_budget`](Self::set_budget), for any kind of plan and an optional budget. The batch of the next step
    /// is counted in addition to the bytes in use now.
    ///
    /// # Errors
    ///
    /// See [`within`](crate::record::Recorded::within); after an error the step is unchanged.
    pub fn plan_again(
        &mut self,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(), RecordError> {
        self.plan_by(self.planning.with_budget(budget, wanted.into()), true)
    }

    fn plan_by(&mut self, planning: Planning, without_batch: bool) -> Result<(), RecordError> {
        let updated = self.state.get_mut().steps > 0;
        let now = |planning: Planning| Planning {
            without_batch,
            updated,
            ..planning
        };
        let state = self.state.get_mut();
        let mut measured = state.plans[0].measured.clone();
        // Drop the old plan, so that the new one does not count its memory.
        state.plans.clear();
        // Nobody else holds it now.
        let updating = |measured: &mut Rc<MeasuredRecording<_>>, planning: &Planning| {
            if let Some(measured) = Rc::get_mut(measured) {
                measured.costs.set_updates(&planning.updates);
                if measured.recording.update != planning.update {
                    measured.recording.set_update(planning.update);
                }
            }
        };
        updating(&mut measured, &planning);
        match planned(&now(planning.clone()), measured.clone()) {
            Ok(plan) => {
                state.plans.push(Rc::new(plan));
                self.planning = planning;
                Ok(())
            }
            Err(error) => {
                updating(&mut measured, &self.planning);
                let before = now(self.planning.clone());
                let before = planned(&before, measured.clone()).or_else(|_| {
                    planned(
                        &self.planning.with_budget(None, GraphPlanner::None.into()),
                        measured,
                    )
                })?;
                state.plans.push(Rc::new(before));
                Err(error)
            }
        }
    }

    /// The number of stored recordings, and how often a step differed from its recording although its batch had the
    /// same shapes: then something other than the batch and the parameters changes what it computes.
    pub fn recordings(&self) -> (usize, u64) {
        let state = self.state.borrow();
        (state.plans.len(), state.changed)
    }

    /// By how many bytes memory in use exceeded the plan, if a step was planned again for that reason since the last
    /// call.
    pub fn take_growth(&self) -> Option<Bytes> {
        self.state.borrow_mut().grown.take()
    }

    /// Like [`plan_again`](Self::plan_again), with updates as given by `update`, for a step that was recorded for
    /// [either](crate::record::Recorded::with_either_update). Plans for batches of other shapes are made again when
    /// such batches occur.
    ///
    /// # Errors
    ///
    /// See [`plan_again`](Self::plan_again); [`RecordError::OtherUpdate`] if the step was recorded only for the other
    /// kind of update.
    pub fn plan_updating(
        &mut self,
        update: Update,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(), RecordError> {
        let planning = self.planning.with_update(update)?;
        self.plan_by(planning.with_budget(budget, wanted.into()), true)
    }

    /// From the next plan on, tensors may be offloaded over this link, or with `None` none are.
    pub fn set_link(&mut self, link: Option<Link>) {
        self.planning.link = link;
    }

    /// From the next plan on, each rank updates its own parameters and keeps their state, or, with `None`, all
    /// parameters. The step must be recorded with an optimizer without [shards](crate::record::Optimizer::shards), and
    /// run with one that has these shards.
    pub fn set_shards(&mut self, shards: Option<&Shards>) {
        self.planning.set_shards(shards);
    }

    /// The plan for this batch, stored or new, and its peak given the bytes in use now.
    pub(super) fn plan_for(
        &self,
        model: &M,
        batch: &I,
    ) -> Result<Current<R::Auxiliary>, RecordError> {
        let (shapes, places) = (shapes(batch), Place::of(model));
        let mut state = self.state.borrow_mut();
        state.steps += 1;
        let updated = state.steps > 1;
        let planning = || Planning {
            updated,
            ..self.planning.clone()
        };
        let is_of = |plan: &Rc<PlannedRecording<_>>| plan.measured.is_of(&shapes, &places);
        let known = state.plans.iter().position(is_of);
        let on_host = self.planning.on_host.then_some(&*self.planning.meter);
        let mut begun = Bytes::ZERO;
        let (taken, comparison_bytes) = if known.is_some() && state.steps < state.compare_next {
            (None, Bytes::ZERO)
        } else {
            if let (Some(place), Some(meter)) = (known, on_host) {
                state.plans[..=place].rotate_right(1);
                self.fit(&mut state, &planning())?;
                begun = meter.read().peak_in_use_bytes;
            }
            let (taken, mut bytes) = peak_of(on_host, || {
                let input_gradients = self.planning.input_gradients;
                let taken = bridge::take(model, &places, batch, input_gradients, &self.step)?;
                Ok(Some(taken))
            })?;
            if let Some(meter) = on_host {
                begun = begun.max(meter.read().peak_in_use_bytes);
            }
            if self.planning.comparison.how == Comparison::Never {
                bytes = Bytes::ZERO;
            }
            (taken, bytes)
        };
        let now = taken.as_ref().map(Taken::fingerprint);
        let same = |plan: &Rc<PlannedRecording<_>>| {
            let recorded = plan.measured.recording.fingerprint;
            is_of(plan) && now.is_none_or(|now| now == recorded)
        };
        let mut auxiliary_now = None;
        let place = match (state.plans.iter().position(same), taken) {
            (Some(place), taken) => {
                auxiliary_now = taken.map(|taken| taken.auxiliary);
                place
            }
            (None, None) => unreachable!("a step that is not compared is known"),
            (None, Some(taken)) => {
                if known.is_some() {
                    state.changed += 1;
                    log::warn!(
                        "the training step does something else than when it was recorded (a number that changes \
                         from step to step?): recorded and planned again. Pass such numbers in as tensors of the batch"
                    );
                } else {
                    log::info!(
                        "a batch of other shapes, or other parameters that train: the step is recorded and \
                         planned for them"
                    );
                }
                let (recording, auxiliary) = Recording::new(taken, self.planning.update);
                recording.check_trains()?;
                let later = self.planning.later + state.new_bytes(&self.planning, &recording)?;
                let given = given(&recording, model, batch);
                state.plans.truncate(KEPT - 1);
                let planning = Planning {
                    later,
                    ..planning()
                };
                let recorded = (recording, auxiliary);
                let measured = MeasuredRecording::new(
                    &planning,
                    given,
                    recorded,
                    shapes,
                    comparison_bytes,
                    &mut |_, _| {},
                )?;
                let plan = planned(&planning, Rc::new(measured))?;
                state.plans.insert(0, Rc::new(plan));
                0
            }
        };
        // The first plan is the most recently used.
        state.plans[..=place].rotate_right(1);
        let predicted_peak = self.fit(&mut state, &planning())?;
        Ok(Current {
            plan: state.plans[0].clone(),
            predicted_peak,
            begun,
            auxiliary: auxiliary_now,
        })
    }

    /// Plans the first of the stored recordings again if its plan does not fit what is in use now, and returns its
    /// predicted peak.
    fn fit(
        &self,
        state: &mut State<R::Auxiliary>,
        planning: &Planning,
    ) -> Result<Bytes, RecordError> {
        let planned_peak = state.plans[0].numbers.predicted_peak;
        let meter = &*self.planning.meter;
        let mut growth = state.plans[0].growth(meter);
        let fits = |growth| match self.planning.budget {
            Some(budget) => planned_peak + growth <= budget,
            None => true,
        };
        if !fits(growth) {
            // A queue may have freed buffers that pools still count.
            meter.trim();
            growth = state.plans[0].growth(meter);
        }
        if fits(growth) {
            return Ok(planned_peak + growth);
        }
        log::info!("{growth} more are in use than when the step was planned: planned again");
        // Drop the old plan first, because it takes memory.
        let measured = state.plans.remove(0).measured.clone();
        let again = planned(planning, measured.clone()).or_else(|error| {
            // Use the plain order as a placeholder until there is enough memory: the step is planned again before it
            // runs.
            let plain = planning.with_budget(None, GraphPlanner::None.into());
            state.plans.insert(0, Rc::new(planned(&plain, measured)?));
            Err(error)
        })?;
        let peak = again.numbers.predicted_peak;
        state.plans.insert(0, Rc::new(again));
        state.grown = Some(growth);
        Ok(peak)
    }

    /// Decides when the step is compared with its recording next.
    pub(super) fn schedule_comparison(&self, step_time: Duration) {
        let mut state = self.state.borrow_mut();
        if state.steps >= state.compare_next {
            let comparison = &self.planning.comparison;
            state.compare_next = comparison.next(state.steps, state.changed > 0, step_time);
        }
    }
}
