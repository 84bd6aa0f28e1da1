//! A recorded step with its plans: what runs in the place of `forward` and `backward`.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{module::Module, tensor::DispatchTensor};
use burn_ir::OperationIr;
use rekindle_plan::{
    Bytes, OptimizerCost, Seconds,
    graph::{Graph, GraphPlanner, Program, Span, SpanPass},
};

use super::{
    Budget, IntoBudget, RecordError,
    agreement::Ranks,
    bridge::{self, Interpreter, StepResult},
    exchange::Exchange,
    finite,
    given::{given, shapes, started},
    host::Host,
    lent::Lent,
    optimizer::Optimizer,
    output::{Done, Output, Seen, SpanReading},
    planned::{Measured, Planned},
    planning::{Planning, Wanted, planned},
    profile::StepProfile,
    program::Turn,
    recording::{Parameter, Recording},
    staged::StagedPlan,
    step_plan::{StepExchange, StepPlan},
    update::{Update, UpdateCosts},
};
use crate::{
    activation::Activation,
    executor::Room,
    graph::free_dead_nodes,
    meter::{Meter, Phase, PhaseRecorder, halves},
    quiet,
    reduce::{Reducer, Shards},
};

/// Recordings with their plans that are kept, for batches of several shapes.
const KEPT: usize = 8;

/// The first steps are all compared with their recording, so that a number that changes with every step is found.
const COMPARED_AT_FIRST: u64 = 3;

/// Share of the step's time that comparing it with its recording may take.
const COMPARING: f64 = 0.01;

/// A training step that runs inside its budget.
///
/// Made by [`Recorded::within`](super::Recorded::within) and its siblings. It holds no parameter: [`run`](Self::run) is given the model of the
/// moment.
pub struct Step<M, I, R: StepResult, F> {
    step: F,
    planning: Planning,
    /// Those that share the step.
    ranks: Option<Ranks>,
    state: RefCell<State<R::Auxiliary>>,
    types: std::marker::PhantomData<fn(&M, I)>,
}

struct State<A> {
    /// The most recently used first.
    plans: Vec<Rc<Planned<A>>>,
    steps: u64,
    compare_next: u64,
    /// How often a step differed from its recording though its batch's shapes were equal.
    changed: u64,
    /// What more was in use when a step was last planned again for that.
    grown: Option<Bytes>,
}

/// A plan and its peak with what is in use now.
type Current<A> = (Rc<Planned<A>>, Bytes);

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: Activation,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    pub(super) fn new(step: F, planning: Planning, first: Planned<R::Auxiliary>) -> Self {
        Self {
            step,
            planning,
            ranks: None,
            state: RefCell::new(State {
                plans: vec![Rc::new(first)],
                steps: 0,
                compare_next: 1,
                changed: 0,
                grown: None,
            }),
            types: std::marker::PhantomData,
        }
    }

    /// A step that ranks share, once they have all planned it.
    pub(super) fn shared(
        step: Result<Self, RecordError>,
        reducer: Arc<dyn Reducer>,
    ) -> Result<Self, RecordError> {
        let ranks = match &step {
            Ok(step) => {
                let (state, planning) = (step.state.borrow(), &step.planning);
                let ranks = Ranks::agreed(reducer, Ok((&*state.plans[0], &planning.device)));
                planning.meter.trim();
                ranks
            }
            Err(error) => Ranks::agreed::<R::Auxiliary>(reducer, Err(error)),
        }?;
        Ok(Self {
            ranks: Some(ranks),
            ..step?
        })
    }

    /// This rank's samples over those of all ranks, from the next step on: 1 over the number of ranks where this was never
    /// called. A rank that has no sample says 0, and runs the step on any batch.
    pub fn set_share(&mut self, share: f64) {
        if let Some(ranks) = &mut self.ranks {
            ranks.share = share;
        }
    }

    /// Runs the step on a batch: the plan's operations, each as often as the plan says.
    ///
    /// Running statistics of `model` move once. A batch of another shape than before, or a step that would now do
    /// something else than its recording, is recorded and planned on its own first; that is said by
    /// [`recordings`](Self::recordings) and [`log`].
    ///
    /// # Errors
    ///
    /// If the step cannot be recorded or fits no plan, a value is not finite, or the device fails. Then nothing is
    /// handed out, and the model is as it was.
    pub fn run(&self, model: &M, batch: I) -> Result<Output<R::Auxiliary, I>, RecordError> {
        self.run_with(model, batch, None)
    }

    /// As [`run`](Self::run). Memory is read after every [`Span`] of the program, which takes longer, and `watch` is
    /// told of each one that is done.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_watched(
        &self,
        model: &M,
        batch: I,
        mut watch: impl FnMut(&Span),
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        self.run_with(model, batch, Some(&mut watch))
    }

    /// Runs the step on a batch, and updates the model in its backward pass: the step was recorded
    /// [for that](super::Recorded::with_update_in_backward). `rate` is the learning rate. The output has no gradients.
    ///
    /// Parameters, losses and statistics are those of [`run`](Self::run) and an update after it; on the CPU backend bit for
    /// bit.
    ///
    /// While the step runs it alone has the parameters, so that they are updated in place where nobody else holds them:
    /// a clone of the model keeps a second copy of each alive.
    ///
    /// Each gradient is checked by itself before it updates its parameter, unless
    /// [`with_finite_check`](super::Recorded::with_finite_check) said no; the loss is checked at the end. A loss that is
    /// not finite mostly shows in the first gradient, before anything was updated.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). The model is as it was, unless the error is [`RecordError::PartlyUpdated`]: then some of its
    /// parameters are updated and others not, and training goes on from a snapshot of model and optimizer.
    /// [`RecordError::OtherUpdate`] where the step was recorded for [`run`](Self::run).
    pub fn run_updating<O: Optimizer>(
        &self,
        model: &mut M,
        batch: I,
        rate: f64,
        optimizer: &mut O,
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        self.run_updating_with(model, batch, (rate, optimizer), None)
    }

    /// As [`run_updating`](Self::run_updating), watched as by [`run_watched`](Self::run_watched).
    ///
    /// # Errors
    ///
    /// As [`run_updating`](Self::run_updating).
    pub fn run_updating_watched<O: Optimizer>(
        &self,
        model: &mut M,
        batch: I,
        rate: f64,
        optimizer: &mut O,
        mut watch: impl FnMut(&Span),
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        self.run_updating_with(model, batch, (rate, optimizer), Some(&mut watch))
    }

    fn run_with(
        &self,
        model: &M,
        batch: I,
        watch: Option<&mut dyn FnMut(&Span)>,
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        let mut exchange = self.ranks.as_ref().map(Exchange::new);
        let output = self.run_exchanging(model, batch, watch, exchange.as_mut());
        output.map_err(|error| match &mut exchange {
            Some(exchange) => exchange.abandon(error),
            None => error,
        })
    }

    fn run_exchanging(
        &self,
        model: &M,
        batch: I,
        watch: Option<&mut dyn FnMut(&Span)>,
        exchange: Option<&mut Exchange<'_>>,
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        let (planned, predicted_peak) = self.begin(Update::After, model, &batch)?;
        let measured = &planned.measured;
        let recording = &measured.recording;
        let (done, seen) = self.watched(&planned, predicted_peak, watch, |readings| {
            let (mut interpreter, returned) = start(recording, model, &batch)?;
            let interpreter = interpreter.as_mut();
            let mut update = |_: &Parameter, _, _: &mut dyn Interpreter| Ok(());
            let hooks = (exchange, &mut update as &mut UpdateHook<'_>);
            self.interpret(&planned, interpreter, returned, readings, hooks)
        });
        let done = done?;
        if self.planning.check {
            done.check(recording)?;
        }
        done.finish(measured, model, batch, seen)
    }

    fn run_updating_with<O: Optimizer>(
        &self,
        model: &mut M,
        batch: I,
        by: (f64, &mut O),
        watch: Option<&mut dyn FnMut(&Span)>,
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        let mut exchange = self.ranks.as_ref().map(Exchange::new);
        let output = self.run_updating_exchanging(model, batch, by, watch, exchange.as_mut());
        output.map_err(|(updated, error)| {
            let (updated, source) = match &mut exchange {
                Some(exchange) => {
                    let error = exchange.abandon(error);
                    (updated.max(exchange.updated), error)
                }
                None => (updated, error),
            };
            match updated {
                0 => source,
                _ => RecordError::PartlyUpdated {
                    updated,
                    of: self.state.borrow().plans[0]
                        .measured
                        .recording
                        .updated()
                        .count(),
                    source: Box::new(source),
                },
            }
        })
    }

    /// Errors come with the number of parameters that were updated.
    fn run_updating_exchanging<O: Optimizer>(
        &self,
        model: &mut M,
        batch: I,
        (rate, optimizer): (f64, &mut O),
        watch: Option<&mut dyn FnMut(&Span)>,
        mut exchange: Option<&mut Exchange<'_>>,
    ) -> Result<Output<R::Auxiliary, I>, (usize, RecordError)> {
        let before = |error| (0, error);
        let (planned, predicted_peak) = self
            .begin(Update::InBackward, model, &batch)
            .map_err(before)?;
        let measured = &planned.measured;
        let recording = &measured.recording;
        let started = quiet::catch(|| start(recording, model, &batch));
        let started = started.map_err(RecordError::Device).flatten();
        let (mut interpreter, returned) = started.map_err(before)?;
        let mut lent = Lent::take(model, recording);
        let check = self.planning.check;
        let (done, seen) = self.watched(&planned, predicted_peak, watch, |readings| {
            let mut update = |one: &Parameter, gradient, interpreter: &mut dyn Interpreter| {
                if check {
                    finite::check_gradient(&one.path, &gradient)?;
                }
                let last = recording.tensors.last_read(one.tensor);
                let value = interpreter.hand_out(&last);
                interpreter.run(OperationIr::Drop(last));
                lent.update(one, value, gradient, rate, optimizer);
                Ok(())
            };
            let interpreter = interpreter.as_mut();
            let exchange = exchange.as_deref_mut();
            let hooks = (exchange, &mut update as &mut UpdateHook<'_>);
            self.interpret(&planned, interpreter, returned, readings, hooks)
        });
        let done = done.and_then(|done| match check {
            true => done.check(recording).map(|()| done),
            false => Ok(done),
        });
        let updated = lent.updated();
        // No rank has given the step up: all come here.
        let exchange = exchange.filter(|exchange| exchange.is_done());
        let done = match exchange.zip(optimizer.shards()) {
            Some((exchange, shards)) => {
                let shared = lent.share(recording, interpreter.as_mut(), shards);
                done.and_then(|mut done| {
                    let (sent, until) = (shared?, exchange.elapsed());
                    if let Some(of_ranks) = &mut done.shared {
                        of_ranks.exchange.add_shared(sent, until);
                    }
                    Ok(done)
                })
            }
            None => done,
        };
        lent.put_back(model, recording, interpreter.as_mut());
        drop(interpreter);
        let failed = |error| (updated, error);
        let done = done.map_err(failed)?;
        done.finish(measured, model, batch, seen).map_err(failed)
    }

    /// The plan that runs, and its peak with what is in use now; the step updates its parameters as `update` says.
    fn begin(
        &self,
        update: Update,
        model: &M,
        batch: &I,
    ) -> Result<Current<R::Auxiliary>, RecordError> {
        if self.planning.update != update {
            return Err(RecordError::OtherUpdate {
                update: self.planning.update,
            });
        }
        // What the update before has left in burn's graph goes with the next backward, and the step has none.
        free_dead_nodes(&self.planning.device);
        // An update or an evaluation since the last step may have been refused.
        let current = self.plan_for(model, batch)?;
        RecordError::of_device(&current.0.measured.recording, &*self.planning.meter)?;
        Ok(current)
    }

    /// Runs a plan's program, with what is seen of memory and time meanwhile.
    fn watched(
        &self,
        planned: &Planned<R::Auxiliary>,
        predicted_peak: Bytes,
        watch: Option<&mut dyn FnMut(&Span)>,
        run: impl FnOnce(&mut Readings<'_>) -> Result<Done, RecordError>,
    ) -> (Result<Done, RecordError>, Seen) {
        let started = Instant::now();
        let [phases, spans] = halves(&self.planning.meter);
        // A second reader costs the device a wait at every phase.
        let phases: &dyn Meter = match &watch {
            Some(_) => &phases,
            None => &*self.planning.meter,
        };
        let mut readings = Readings {
            phases: PhaseRecorder::start(Some(phases)),
            phase: Phase::Forward,
            watch: watch.map(|tell| Watch {
                tell,
                meter: &spans,
                started,
                spans: Vec::new(),
            }),
        };
        if let Some(watch) = &readings.watch {
            watch.meter.start_interval();
        }
        let done = quiet::catch(|| run(&mut readings)).map_err(RecordError::Device);
        // Waits for queued work.
        readings.phases.end(readings.phase);
        let refused = RecordError::of_device(&planned.measured.recording, &*self.planning.meter);
        let done = done.and_then(|done| refused.map(|()| done));
        let seen = Seen {
            phases: readings.phases.finish(),
            spans: readings.watch.map_or(Vec::new(), |watch| watch.spans),
            predicted_peak,
        };
        self.schedule_comparison(planned, started.elapsed());
        (done.flatten(), seen)
    }

    /// Plans the step again for another budget, without measuring it again: to look at several. A share such as `"60%"`
    /// is one of the plan's [`plain_peak`](StepPlan::plain_peak).
    ///
    /// # Errors
    ///
    /// As [`within`](super::Recorded::within); then the step is as it was.
    pub fn set_budget(
        &mut self,
        budget: impl IntoBudget,
        planner: GraphPlanner,
    ) -> Result<(), RecordError> {
        self.plan_share(budget.into_budget()?, planner, true)
    }

    /// Plans for a budget that may be a share; `without_batch` says that the batch is not there now.
    pub(super) fn plan_share(
        &mut self,
        budget: Budget,
        planner: GraphPlanner,
        without_batch: bool,
    ) -> Result<(), RecordError> {
        let plain = self.plan().plain_peak;
        self.plan_now(Some(budget.of(plain)), planner.into(), without_batch)
            .map_err(|error| budget.explain(error, plain))
    }

    /// As [`set_budget`](Self::set_budget), for any plan, and with no budget where there is none. The batch of the next
    /// step is counted beside what is in use now.
    ///
    /// # Errors
    ///
    /// As [`within`](super::Recorded::within); then the step is as it was.
    pub fn plan_again(
        &mut self,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(), RecordError> {
        self.plan_now(budget, wanted.into(), true)
    }

    fn plan_now(
        &mut self,
        budget: Option<Bytes>,
        wanted: Wanted,
        without_batch: bool,
    ) -> Result<(), RecordError> {
        self.plan_by(self.planning.with_budget(budget, wanted), without_batch)
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
        // The old plan takes memory, which the new one is not to count.
        state.plans.clear();
        // Nobody else holds it now.
        let updating = |measured: &mut Rc<Measured<_>>, planning: &Planning| {
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

    /// How many recordings are kept, and how often a step differed from its recording though its batch had the same
    /// shapes: something else than the batch and the parameters changes what it computes.
    pub fn recordings(&self) -> (usize, u64) {
        let state = self.state.borrow();
        (state.plans.len(), state.changed)
    }

    /// How much more was in use than planned, where a step was planned again for it since this was last asked.
    pub fn take_growth(&self) -> Option<Bytes> {
        self.state.borrow_mut().grown.take()
    }

    /// The plan of the last step, or of the first if none ran.
    pub fn plan(&self) -> StepPlan {
        let state = self.state.borrow();
        let planned = &state.plans[0];
        let shards = self.planning.updates.shards.as_ref();
        let parameters = sent(&planned.measured.recording, shards);
        let exchanges = self.ranks.as_ref().zip(planned.timetables.as_ref());
        let exchanges = exchanges
            .map(|(ranks, both)| both.each_ref().map(|one| ranks.predicted(one, &parameters)));
        let [exchange, plain_exchange] = exchanges.unwrap_or_default();
        let added = |exchange: Option<StepExchange>| {
            exchange.map(|one| one.taken.added()).unwrap_or_default()
        };
        StepPlan {
            planner: planned.planner,
            budget: self.planning.budget,
            predicted_peak: planned.predicted_peak,
            predicted_time: planned.predicted_time + added(exchange),
            exchange,
            plain_peak: planned.plain_peak,
            plain_time: planned.plain_time + added(plain_exchange),
            operations: planned.measured.recording.operations.len(),
            repeated: planned.repeated,
            offload: planned.offload,
        }
    }

    /// When the step updates its parameters: [`run`](Self::run) is for steps that do it after, and
    /// [`run_updating`](Self::run_updating) for the others.
    pub fn update(&self) -> Update {
        self.planning.update
    }

    /// As [`plan_again`](Self::plan_again), with parameters updated when `update` says, by a step that was recorded for
    /// [either](super::Recorded::with_either_update). Plans for batches of other shapes are made again when they come.
    ///
    /// # Errors
    ///
    /// As [`plan_again`](Self::plan_again); [`RecordError::OtherUpdate`] where the step was recorded for the other.
    pub fn plan_updating(
        &mut self,
        update: Update,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(), RecordError> {
        let recording = &self.state.get_mut().plans[0].measured.recording;
        let planning = self.planning.with_update(update, recording)?;
        self.plan_by(planning.with_budget(budget, wanted.into()), true)
    }

    /// From the next plan on, each rank makes the updates of its own parameters and keeps their state, or with `None` all of
    /// them. The step was recorded with an optimizer that has no [shards](Optimizer::shards) itself, and is run with one that
    /// has these.
    pub fn set_shards(&mut self, shards: Option<&Shards>) {
        let recording = &self.state.get_mut().plans[0].measured.recording;
        self.planning.set_shards(shards, recording);
    }

    /// Whether values are checked: see [`with_finite_check`](super::Recorded::with_finite_check).
    pub fn set_finite_check(&mut self, on: bool) {
        self.planning.check = on;
    }

    /// Into how many slots the planner `optimal` cuts the memory from now on.
    pub fn set_slots(&mut self, slots: usize) {
        self.planning.slots = slots;
    }

    /// The plan of the last step, or of the first if none ran, in terms of the model's stages.
    pub fn staged_plan(&self) -> StagedPlan {
        StagedPlan::new(&self.state.borrow().plans[0])
    }

    /// The step as it was measured, to be planned elsewhere.
    pub fn profile(&self) -> StepProfile {
        StepProfile::new(&self.state.borrow().plans[0])
    }

    /// What the optimizer's step takes, as it was measured.
    pub fn optimizer_cost(&self) -> OptimizerCost {
        self.planning.optimizer
    }

    /// What ranks that share out the updates so hold each of the optimizer's state, and what sending each other the updated
    /// parameters takes of a step; with `None`, of a state that every rank has whole.
    pub fn state_cost(&self, shards: Option<&Shards>) -> (Bytes, Seconds) {
        let planned = &self.state.borrow().plans[0];
        let recording = &planned.measured.recording;
        let updates = UpdateCosts {
            shards: shards.cloned(),
            ..self.planning.updates.clone()
        };
        let cost = updates.together(self.planning.update, recording);
        let parameters = sent(recording, shards);
        let exchanges = self.ranks.as_ref().zip(planned.timetables.as_ref());
        let sent = exchanges.and_then(|(ranks, [own, _])| ranks.predicted(own, &parameters));
        let sent = sent.map(|sent| sent.taken.parameters_s);
        (cost.state_bytes, sent.unwrap_or_default())
    }

    /// Makes room in a GPU's pools for bytes that the program is about to allocate beside the step, such as a batch:
    /// pools that might grow past the budget are trimmed. Nothing where there is no budget or are no pools.
    pub fn make_room(&self, bytes: Bytes) {
        if let Some(room) = self.planning.room() {
            room.make(bytes);
        }
    }

    /// How often the pools were trimmed so that they stayed within the budget.
    pub fn trims(&self) -> u64 {
        self.planning.room().map_or(0, Room::trims)
    }

    /// The measured graph and the program of the last step, for looking at and for planning again.
    pub fn graph(&self) -> (Graph, Program) {
        let state = self.state.borrow();
        let planned = &state.plans[0];
        (planned.linked(), planned.prepared.program().clone())
    }

    /// The plan for this batch, a kept one or a new one, and its peak with what is in use now.
    fn plan_for(&self, model: &M, batch: &I) -> Result<Current<R::Auxiliary>, RecordError> {
        let shapes = shapes(batch);
        let mut state = self.state.borrow_mut();
        state.steps += 1;
        let updated = state.steps > 1;
        let planning = || Planning {
            updated,
            ..self.planning.clone()
        };
        let known = state
            .plans
            .iter()
            .position(|plan| plan.measured.shapes == shapes);
        let place = match known {
            Some(place) if !self.planning.compare || state.steps < state.compare_next => place,
            _ => {
                let started = Instant::now();
                let taken = bridge::take(model, batch, self.planning.input_gradients, &self.step)?;
                let (recording, auxiliary) = Recording::new(taken, self.planning.update);
                let same = |plan: &Rc<Planned<_>>| {
                    plan.measured.shapes == shapes && plan.measured.recording.hash == recording.hash
                };
                match state.plans.iter().position(same) {
                    Some(place) => place,
                    None => {
                        if known.is_some() {
                            state.changed += 1;
                            log::warn!(
                                "the training step does something else than when it was recorded (a number that changes \
                                 from step to step?): recorded and planned again. Pass such numbers in as tensors of the batch"
                            );
                        } else {
                            log::info!(
                                "a batch of other shapes: the step is recorded and planned for them"
                            );
                        }
                        let given = given(&recording, model, batch)?;
                        let elapsed = started.elapsed();
                        state.plans.truncate(KEPT - 1);
                        let planning = planning();
                        let measured = Measured::new(
                            &planning,
                            given,
                            (recording, auxiliary),
                            shapes,
                            elapsed,
                            &mut |_, _| {},
                        )?;
                        let plan = planned(&planning, Rc::new(measured))?;
                        state.plans.insert(0, Rc::new(plan));
                        0
                    }
                }
            }
        };
        // The first place is the most recently used.
        state.plans[..=place].rotate_right(1);
        let planned_peak = state.plans[0].predicted_peak;
        let meter = &*self.planning.meter;
        let mut growth = state.plans[0].growth(meter);
        let fits = |growth| match self.planning.budget {
            Some(budget) => planned_peak + growth <= budget,
            None => true,
        };
        if !fits(growth) {
            // A queue may have freed something that pools still count.
            meter.trim();
            growth = state.plans[0].growth(meter);
        }
        if fits(growth) {
            return Ok((state.plans[0].clone(), planned_peak + growth));
        }
        log::info!("{growth} more are in use than when the step was planned: planned again");
        // The old plan takes memory itself.
        let measured = state.plans.remove(0).measured.clone();
        let planning = planning();
        let again = planned(&planning, measured.clone()).or_else(|error| {
            // The plain order stands for the step until memory is there: it is planned again before it runs.
            let plain = planning.with_budget(None, GraphPlanner::None.into());
            state.plans.insert(0, Rc::new(planned(&plain, measured)?));
            Err(error)
        })?;
        let peak = again.predicted_peak;
        state.plans.insert(0, Rc::new(again));
        state.grown = Some(growth);
        Ok((state.plans[0].clone(), peak))
    }

    /// When the step is to be compared with its recording next.
    fn schedule_comparison(&self, planned: &Planned<R::Auxiliary>, step_time: Duration) {
        let mut state = self.state.borrow_mut();
        let every = if state.changed > 0 || state.steps < COMPARED_AT_FIRST {
            1.0
        } else {
            (planned.measured.record_time.as_secs_f64() / (COMPARING * step_time.as_secs_f64()))
                .ceil()
        };
        state.compare_next = if state.steps < state.compare_next {
            state.compare_next
        } else {
            state.steps + every.clamp(1.0, 1e6) as u64
        };
    }

    fn interpret(
        &self,
        planned: &Planned<R::Auxiliary>,
        interpreter: &mut dyn Interpreter,
        returned: Handed,
        readings: &mut Readings<'_>,
        (mut exchange, update): (Option<&mut Exchange<'_>>, &mut UpdateHook<'_>),
    ) -> Result<Done, RecordError> {
        let recording = &planned.measured.recording;
        let costs = &planned.measured.costs;
        let mut tensors = returned;
        let mut host = Host::default();
        let room = self.planning.room();
        let make_room = |bytes: Bytes| {
            if let Some(room) = room {
                room.make(bytes);
            }
        };
        let mut update = |one: &Parameter, gradient, interpreter: &mut dyn Interpreter| {
            let cost = self.planning.updates.of(one.id, true);
            make_room(cost.temp_bytes + cost.state_bytes);
            update(one, gradient, interpreter)
        };
        if let Some(exchange) = &mut exchange {
            exchange.start(recording)?;
        }
        let mut turns = planned.prepared.turns(recording);
        for span in &planned.spans {
            readings.begin(span);
            for turn in turns.by_ref().take(span.steps.len()) {
                match turn {
                    Turn::Run(run) => {
                        make_room(costs.taken_by(recording, run.number));
                        match &mut exchange {
                            Some(exchange) if run.recorded.kind.synchronises => {
                                run.run_changed(interpreter, |own| exchange.mean(own))?;
                            }
                            _ => interpreter.run(run.operation()),
                        }
                        let mut ready = Ok(());
                        run.finish(interpreter, &mut |tensor, value| {
                            keep(&mut tensors, &mut exchange, &mut ready, (tensor, value));
                        });
                        ready?;
                    }
                    Turn::Update(one) => {
                        let gradient = one.take(interpreter);
                        match &mut exchange {
                            None => update(one.parameter, gradient, interpreter)?,
                            Some(exchange) => {
                                let summed =
                                    exchange.offer_update(one.parameter.tensor, gradient)?;
                                for (place, gradient) in summed {
                                    update(&recording.parameters[place], gradient, interpreter)?;
                                    exchange.updated += 1;
                                }
                            }
                        }
                    }
                    Turn::Move(one, ready) => {
                        make_room(one.bytes());
                        one.run(interpreter, &mut host)?;
                        let mut kept = Ok(());
                        ready.hand_out(interpreter, &mut |tensor, value| {
                            keep(&mut tensors, &mut exchange, &mut kept, (tensor, value));
                        });
                        kept?;
                    }
                }
                self.planning.check_memory()?;
            }
            readings.end(span);
        }
        let Some(exchange) = exchange else {
            let shared = None;
            return Ok(Done { tensors, shared });
        };
        // What the device has refused is said with the last bucket.
        RecordError::of_device(recording, &*self.planning.meter)?;
        let loss = tensors.get(&recording.loss).cloned();
        exchange.close(loss.ok_or(RecordError::LossElsewhere)?)?;
        while let Some(summed) = exchange.next()? {
            for (place, gradient) in summed {
                let one = &recording.parameters[place];
                match (self.planning.update, one.gradient) {
                    (Update::After, Some(number)) => drop(tensors.insert(number, gradient)),
                    _ => {
                        update(one, gradient, interpreter)?;
                        exchange.updated += 1;
                    }
                }
            }
        }
        let shared = Some(exchange.finish()?);
        Ok(Done { tensors, shared })
    }
}

/// Sizes of the parameters that ranks send each other after their updates.
fn sent(recording: &Recording, shards: Option<&Shards>) -> Vec<Bytes> {
    let trained = recording.trained().filter(|_| shards.is_some());
    trained.map(|(_, bytes)| bytes).collect()
}

/// What a step hands out, by its numbers in the recording.
type Handed = HashMap<usize, DispatchTensor>;

/// Keeps a tensor that the step hands out, unless it is a gradient that ranks sum. Nothing more is exchanged once that has
/// failed.
fn keep(
    tensors: &mut Handed,
    exchange: &mut Option<&mut Exchange<'_>>,
    exchanged: &mut Result<(), RecordError>,
    (tensor, value): (usize, DispatchTensor),
) {
    let kept = match exchange {
        Some(exchange) if exchanged.is_ok() => exchange.offer(tensor, value),
        _ => Ok(Some(value)),
    };
    match kept {
        Ok(kept) => tensors.extend(kept.map(|value| (tensor, value))),
        Err(error) => *exchanged = Err(error),
    }
}

/// What makes an update.
type UpdateHook<'a> =
    dyn FnMut(&Parameter, DispatchTensor, &mut dyn Interpreter) -> Result<(), RecordError> + 'a;

/// An interpreter that holds what is there before the step, and what of that the step returns: the batch's tensors, or a
/// parameter.
fn start<M: Module, I: Activation>(
    recording: &Recording,
    model: &M,
    batch: &I,
) -> Result<(Box<dyn Interpreter>, Handed), RecordError> {
    let given = given(recording, model, batch)?;
    let returned = given
        .iter()
        .filter(|(one, _)| recording.auxiliary.contains(one));
    let returned = returned.cloned().collect();
    Ok((started(recording, given)?, returned))
}

/// What is read while a step runs.
struct Readings<'a> {
    phases: PhaseRecorder<'a>,
    /// The phase that is under way.
    phase: Phase,
    watch: Option<Watch<'a>>,
}

struct Watch<'a> {
    tell: &'a mut dyn FnMut(&Span),
    meter: &'a dyn Meter,
    started: Instant,
    spans: Vec<SpanReading>,
}

impl Readings<'_> {
    fn begin(&mut self, span: &Span) {
        let phase = match (span.pass, self.phase) {
            (SpanPass::Forward, phase) => phase,
            // Parts of the loss may run again in the backward.
            (SpanPass::Loss, Phase::Forward) => Phase::Loss,
            (SpanPass::Loss, phase) => phase,
            (SpanPass::Recompute | SpanPass::Backward, _) => Phase::Backward,
        };
        if phase != self.phase {
            self.phases.end(self.phase);
            self.phase = phase;
        }
    }

    fn end(&mut self, span: &Span) {
        if let Some(watch) = &mut self.watch {
            let memory = watch.meter.read();
            watch.spans.push(SpanReading {
                memory,
                done_at: watch.started.elapsed(),
            });
            (watch.tell)(span);
            watch.meter.start_interval();
        }
    }
}
