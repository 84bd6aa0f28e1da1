//! A recorded step with its plans, which runs instead of `forward` and `backward`.

mod interpret;
mod plans;
mod readings;
mod state;

use std::{cell::RefCell, rc::Rc, sync::Arc};

use burn::module::Module;
use burn_ir::OperationIr;
use rekindle_plan::{
    Bytes, OptimizerCost, Planner,
    graph::{Graph, Program},
};

use super::{
    Comparison, RecordError,
    bridge::Interpreter,
    changes::SpanChange,
    exchange::Exchange,
    finite,
    given::given,
    lent::Lent,
    optimizer::Optimizer,
    options::Planning,
    output::{Done, Output},
    plan_summary::PlanSummary,
    planned::PlannedRecording,
    profile::StepProfile,
    ranks::{StepRanks, failures},
    recording::{Parameter, Recording},
    staged::StagedPlan,
    update::Update,
};
use crate::{
    checkpoint::free_dead_nodes,
    quiet,
    reduce::{Reducer, Shards},
    size::Size,
    step_result::StepResult,
    tensor_tree::TensorTree,
};
use interpret::{UpdateHook, start};
pub use state::Step;
use state::{Current, State};

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
            types: std::marker::PhantomData,
        }
    }

    /// A step shared by ranks, after all ranks have planned it.
    pub(super) fn shared(
        step: Result<Self, RecordError>,
        reducer: Arc<dyn Reducer>,
    ) -> Result<Self, RecordError> {
        let ranks = match &step {
            Ok(step) => {
                let (state, planning) = (step.state.borrow(), &step.planning);
                let ranks = StepRanks::agreed(reducer, Ok((&*state.plans[0], &planning.device)));
                planning.meter.trim();
                ranks
            }
            Err(error) => StepRanks::agreed::<R::Auxiliary>(reducer, Err(error)),
        }?;
        Ok(Self {
            ranks: Some(ranks),
            ..step?
        })
    }

    /// The step with its first plan, or the error of any of its ranks, which all make theirs.
    pub(super) fn planned_first(
        mut self,
        budget: Option<Size>,
        planner: Planner,
    ) -> Result<Self, RecordError> {
        let plain = self.plan().plain_peak;
        let ways = self.planning.ways(budget.is_some());
        let planned = match budget.map(|budget| budget.of(Some(plain))).transpose() {
            Ok(bytes) => self.plan_in(&ways, bytes, planner.into(), false),
            Err(error) => Err(error.into()),
        };
        let failed = match &self.ranks {
            Some(ranks) => failures(&*ranks.reducer, 0, planned.err()).1,
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

    /// Runs the step on a batch, according to the plan.
    ///
    /// Running statistics of `model` are updated once. If the batch has new shapes, or the step now differs from its
    /// recording, it is first recorded and planned again; [`recordings`](Self::recordings) counts this and [`log`]
    /// reports it.
    ///
    /// # Errors
    ///
    /// If the step cannot be recorded, no plan fits, a value is not finite, or the device fails. Then nothing is
    /// returned, and the model is unchanged.
    pub fn run(&self, model: &M, batch: I) -> Result<Output<R::Auxiliary, I>, RecordError> {
        self.among_ranks(|exchange| {
            let current = self.begin(Update::After, model, &batch)?;
            let measured = &current.plan.measured;
            let recording = &measured.recording;
            let (done, seen) = self.read(&current, |readings| {
                let (mut interpreter, returned) = start(recording, model, &batch)?;
                let interpreter = interpreter.as_mut();
                let mut update = |_: &Parameter, _, _: &mut dyn Interpreter| Ok(());
                let hooks = (exchange, &mut update as &mut UpdateHook<'_>);
                self.interpret(&current.plan, interpreter, returned, readings, hooks)
            });
            let done = self.checked(done, recording)?;
            Ok(done.finish(measured, current.auxiliary.as_ref(), model, batch, seen)?)
        })
    }

    /// Runs the step on a batch, and updates the model in its backward pass; the step must be recorded [for
    /// that](super::Recorded::with_update_in_backward). `rate` is the learning rate. The output has no gradients.
    ///
    /// Parameters, losses and statistics are those of [`run`](Self::run) with an update after it; on the CPU backend
    /// bit for bit.
    ///
    /// While the step runs, it takes the parameters out of the model, so that they can be updated in place. A clone of
    /// the model prevents that: it keeps a second copy of each parameter.
    ///
    /// Each gradient is checked by itself before it updates its parameter, unless
    /// [`with_finite_check`](super::Recorded::with_finite_check) turned that off; the loss is checked at the end. A
    /// loss that is not finite usually shows in the first gradient, before anything is updated.
    ///
    /// # Errors
    ///
    /// See [`run`](Self::run). The model is unchanged, unless the error is [`RecordError::PartlyUpdated`]: then only
    /// some of its parameters are updated; resume from a snapshot of model and optimizer. [`RecordError::OtherUpdate`]
    /// if the step was recorded for [`run`](Self::run).
    pub fn run_updating<O: Optimizer>(
        &self,
        model: &mut M,
        batch: I,
        rate: f64,
        optimizer: &mut O,
    ) -> Result<Output<R::Auxiliary, I>, RecordError> {
        self.among_ranks(|mut exchange| {
            let current = self.begin(Update::InBackward, model, &batch)?;
            let measured = &current.plan.measured;
            let recording = &measured.recording;
            let started = quiet::catch(|| start(recording, model, &batch));
            let started = started.map_err(RecordError::Device).flatten();
            let (mut interpreter, returned) = started?;
            let mut lent = Lent::take(model, recording);
            let check = self.planning.options.check;
            let (done, seen) = self.read(&current, |readings| {
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
                self.interpret(&current.plan, interpreter, returned, readings, hooks)
            });
            let done = self.checked(done, recording);
            let updated = lent.updated();
            // No rank has abandoned the step: all ranks reach this point.
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
            let output = done.and_then(|done| {
                done.finish(measured, current.auxiliary.as_ref(), model, batch, seen)
            });
            output.map_err(|error| Failed { updated, error })
        })
    }

    /// Runs a step with the exchange of its ranks, if it has ranks. Reports a failure to the other ranks.
    fn among_ranks<T>(
        &self,
        run: impl FnOnce(Option<&mut Exchange<'_>>) -> Result<T, Failed>,
    ) -> Result<T, RecordError> {
        let mut exchange = self.ranks.as_ref().map(Exchange::new);
        run(exchange.as_mut()).map_err(|Failed { updated, error }| {
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

    /// The results of a run; checks that values are finite, if that is on.
    fn checked(
        &self,
        done: Result<Done, RecordError>,
        recording: &Recording,
    ) -> Result<Done, RecordError> {
        let done = done?;
        if self.planning.options.check {
            done.check(recording)?;
        }
        Ok(done)
    }

    /// What to run; `update` is when the step updates its parameters.
    fn begin(
        &self,
        update: Update,
        model: &M,
        batch: &I,
    ) -> Result<Current<R::Auxiliary>, RecordError> {
        if self.update() != update {
            return Err(RecordError::OtherUpdate {
                update: self.update(),
            });
        }
        // Dead nodes of the last update would only be freed by a backward pass, and a recorded step runs none.
        free_dead_nodes(&self.planning.device);
        let on_host = self.planning.on_host.then_some(&*self.planning.meter);
        on_host.inspect(|meter| meter.start_interval());
        let current = self.plan_for(model, batch)?;
        let planned = &current.plan;
        planned.choose_kernels(&self.planning, self.watched, |recording| {
            Ok(given(recording, model, batch))
        })?;
        // The device may have rejected a kernel of an update or an evaluation since the last step.
        RecordError::of_device(&planned.measured.recording, &*self.planning.meter)?;
        let begun = on_host.map(|meter| meter.read().peak_in_use_bytes);
        Ok(Current {
            begun: current.begun.max(begun.unwrap_or_default()),
            ..current
        })
    }

    /// The plan of the last step, or of the first if none ran.
    pub fn plan(&self) -> PlanSummary {
        let planned = &self.state.borrow().plans[0];
        planned.in_numbers(&self.planning, self.ranks.as_ref())
    }

    /// When the step updates its parameters: use [`run`](Self::run) for updates after the step, and
    /// [`run_updating`](Self::run_updating) for updates in the backward pass.
    pub fn update(&self) -> Update {
        self.planning.chosen.way.update
    }

    /// The assignment of parameters to ranks, if they divide the optimizer's state in this plan.
    #[doc(hidden)]
    pub fn shards(&self) -> Option<Shards> {
        self.planning.updates().shards
    }

    /// Sets whether the next steps read memory after every [`Span`](rekindle_plan::graph::Span) of their program, for
    /// [`Output::spans`], which takes longer.
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
        if let Some(room) = &self.planning.room {
            room.make(bytes);
        }
    }

    /// Number of times the pools were trimmed to stay within the budget.
    #[doc(hidden)]
    pub fn trims(&self) -> u64 {
        self.planning.room.as_ref().map_or(0, |room| room.trims())
    }

    /// The measured graph and the program of the last step, for inspection and for planning again.
    pub fn graph(&self) -> (Graph, Program) {
        let state = self.state.borrow();
        let planned = &state.plans[0];
        (planned.linked(), planned.prepared.program().clone())
    }
}

/// A step that failed.
struct Failed {
    /// Number of parameters updated before the failure.
    updated: usize,
    error: RecordError,
}

impl From<RecordError> for Failed {
    fn from(error: RecordError) -> Self {
        Self { updated: 0, error }
    }
}
