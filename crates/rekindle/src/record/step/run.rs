//! One run of a step: its plan's program, turn by turn, and readings of memory and time.

use std::{collections::HashMap, time::Instant};

use burn::{module::Module, tensor::DispatchTensor};
use burn_ir::OperationIr;
use rekindle_plan::{Bytes, graph::Span};

use super::Step;
use crate::{
    accumulate::{self, Sum},
    meter::{MemoryReading, Phase, PhaseRecorder},
    quiet,
    record::{
        RecordError,
        bridge::Interpreter,
        exchange::Exchange,
        finite,
        given::{given, shapes, started},
        host::Host,
        leaf::free_dead_nodes,
        lent::Lent,
        optimizer::Optimizer,
        options::Planning,
        output::{Done, Output, SpanReading},
        places::Parameter,
        planned::{Current, PlannedRecording, phase_of},
        program::Turn,
        recording::Recording,
        update::Update,
    },
    step_result::StepResult,
    tensor_tree::TensorTree,
};

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
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
    pub fn run(&self, model: &M, batch: I) -> Result<Output<R::Auxiliary>, RecordError> {
        self.among_ranks(|exchange| {
            let current = self.begin(Update::After, model, &batch)?;
            let recording = &current.plan.measured.recording;
            let done = self.read(&current, |readings| {
                let (mut interpreter, returned) = start(recording, model, &batch)?;
                let interpreter = interpreter.as_mut();
                let mut update = |_: &Parameter, _, _: &mut dyn Interpreter| Ok(());
                let hooks = (exchange, &mut update as &mut UpdateHook<'_>);
                self.interpret(&current.plan, interpreter, returned, readings, hooks)
            })?;
            Ok(done.finish(&current, model)?)
        })
    }

    /// Runs the step on the [parts of a batch](crate::accumulate), one after the other, and returns the whole batch's loss and
    /// gradients, the means of the parts'. The step is recorded on one of the parts, [with](crate::record::Recorded::with_parts)
    /// their number; all have the same shapes. Auxiliary outputs are those of the parts, in order.
    ///
    /// # Errors
    ///
    /// See [`run`](Self::run); nothing is returned then, but parts that have run have moved running statistics.
    /// [`RecordError::Parts`] if there is no part, more than planned, or one of other shapes. Ranks that share the step give
    /// equally many.
    pub fn run_parts(
        &self,
        model: &M,
        parts: impl IntoIterator<Item = I>,
    ) -> Result<Output<Vec<R::Auxiliary>>, RecordError> {
        let Planning { options, meter, .. } = &self.planning;
        let (mut sum, mut first, mut memory) = (Sum::default(), None, MemoryReading::default());
        for (part, batch) in (1..).zip(parts) {
            let own = shapes(&batch);
            let first = first.get_or_insert_with(|| own.clone());
            // Other ranks may have begun the part.
            let output = match accumulate::check(part, options.parts, [&own, first]) {
                Ok(()) => self.run(model, batch),
                Err(error) => self.among_ranks(|_| Err(error.into())),
            }?;
            let run = self.state.borrow().plans[0].clone();
            let [_, of_sum] = run.measured.recording.of_parts(options.parts);
            self.planning.room.make(of_sum);
            quiet::catch(|| sum.add(model, output, 1.0)).map_err(RecordError::Device)?;
            memory = meter.read().after(memory);
        }
        let all = quiet::catch(|| sum.mean(model)).map_err(RecordError::Device);
        let mut all = all.flatten()?;
        all.memory = memory.after(all.memory);
        Ok(all)
    }

    /// Runs the step on a batch, and updates the model in its backward pass; the step must be recorded [for
    /// that](crate::record::Recorded::with_update_in_backward). `rate` is the learning rate. The output has no gradients.
    ///
    /// Parameters, losses and statistics are those of [`run`](Self::run) with an update after it; on the CPU backend
    /// bit for bit.
    ///
    /// While the step runs, it takes the parameters out of the model, so that they can be updated in place. A clone of
    /// the model prevents that: it keeps a second copy of each parameter.
    ///
    /// Each gradient is checked by itself before it updates its parameter, unless
    /// [`with_finite_check`](crate::record::Recorded::with_finite_check) turned that off; the loss is checked at the end. A
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
    ) -> Result<Output<R::Auxiliary>, RecordError> {
        self.among_ranks(|mut exchange| {
            let current = self.begin(Update::InBackward, model, &batch)?;
            let recording = &current.plan.measured.recording;
            let started = quiet::catch(|| start(recording, model, &batch));
            let started = started.map_err(RecordError::Device).flatten();
            let (mut interpreter, returned) = started?;
            let mut lent = Lent::take(model, recording);
            let check = self.planning.options.check;
            let done = self.read(&current, |readings| {
                let mut update = |one: &Parameter, gradient, interpreter: &mut dyn Interpreter| {
                    if check {
                        finite::check_gradient(&one.path, &gradient)?;
                    }
                    let last = recording.tensors.last_read(one.tensor);
                    let value = interpreter.hand_out(&last);
                    interpreter.run(OperationIr::Drop(last));
                    let update = || lent.update(one, value, gradient, rate, optimizer);
                    quiet::catch(update).map_err(|said| {
                        RecordError::Device(format!("{said}, in the update of `{}`", one.path))
                    })
                };
                let interpreter = interpreter.as_mut();
                let exchange = exchange.as_deref_mut();
                let hooks = (exchange, &mut update as &mut UpdateHook<'_>);
                self.interpret(&current.plan, interpreter, returned, readings, hooks)
            });
            let updated = lent.updated();
            // No rank has abandoned the step: all ranks reach this point.
            let exchange = exchange.filter(|exchange| exchange.is_done());
            let done = match exchange.zip(optimizer.shards()) {
                Some((exchange, shards)) => {
                    let shared = lent.share(recording, interpreter.as_mut(), shards);
                    done.and_then(|mut done| {
                        let (sent, until) = (shared?, exchange.elapsed());
                        if let Some(reading) = &mut done.exchange {
                            reading.add_shared(sent, until);
                        }
                        Ok(done)
                    })
                }
                None => done,
            };
            lent.put_back(model, recording, interpreter.as_mut());
            drop(interpreter);
            let output = done.and_then(|done| done.finish(&current, model));
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

    /// What to run; `update` is when the step updates its parameters.
    fn begin(
        &self,
        update: Update,
        model: &M,
        batch: &I,
    ) -> Result<Current<R::Auxiliary>, RecordError> {
        if self.planning.way.update != update {
            return Err(RecordError::OtherUpdate {
                update: self.planning.way.update,
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
        planned
            .measured
            .recording
            .check_device(&*self.planning.meter)?;
        let begun = on_host.map(|meter| meter.read().peak_in_use_bytes);
        Ok(Current {
            begun: current.begun.max(begun.unwrap_or_default()),
            ..current
        })
    }

    /// Runs a plan's program, reads memory and time meanwhile, and checks that values are finite, if that is on.
    fn read(
        &self,
        current: &Current<R::Auxiliary>,
        run: impl FnOnce(&mut Readings<'_>) -> Result<Done, RecordError>,
    ) -> Result<Done, RecordError> {
        let meter = &*self.planning.meter;
        let recording = &current.plan.measured.recording;
        let mut readings = Readings {
            started: Instant::now(),
            phases: PhaseRecorder::start(meter),
            phase: Phase::Forward,
            watched: self.watched,
            spans: Vec::new(),
        };
        let done = quiet::catch(|| run(&mut readings)).map_err(RecordError::Device);
        // Waits for queued work.
        readings.phases.end(readings.phase);
        let refused = recording.check_device(meter);
        let done = done.and_then(|done| refused.map(|()| done));
        self.schedule_comparison(readings.started.elapsed());
        let done = done.flatten()?;
        if self.planning.options.check {
            done.check(recording)?;
        }
        Ok(Done {
            phases: readings.phases.finish(),
            spans: readings.spans,
            ..done
        })
    }

    /// Runs a plan's program.
    fn interpret(
        &self,
        planned: &PlannedRecording<R::Auxiliary>,
        interpreter: &mut dyn Interpreter,
        mut tensors: Handed,
        readings: &mut Readings<'_>,
        (mut exchange, update): (Option<&mut Exchange<'_>>, &mut UpdateHook<'_>),
    ) -> Result<Done, RecordError> {
        let recording = &planned.measured.recording;
        let costs = &planned.measured.costs;
        let mut host = Host::default();
        let room = &self.planning.room;
        let updates = self.planning.updates();
        let mut update = |one: &Parameter, gradient, interpreter: &mut dyn Interpreter| {
            let cost = updates.of(one.id, true);
            room.make(cost.temp_bytes + cost.state_bytes);
            update(one, gradient, interpreter)
        };
        if let Some(exchange) = &mut exchange {
            exchange.start(recording)?;
        }
        let mut turns = planned.prepared.turns(recording);
        for span in &planned.spans {
            readings.begin(span);
            for (turn, ready) in turns.by_ref().take(span.steps.len()) {
                match turn {
                    // An operation whose turn comes again is recomputed.
                    Turn::Run(run) => {
                        room.make(costs.taken_by(recording, run.number));
                        match &mut exchange {
                            Some(exchange) if run.recorded.kind.synchronises => {
                                run.run_changed(interpreter, |own| exchange.mean(own))?;
                            }
                            _ => interpreter.run(run.operation()),
                        }
                        run.finish(interpreter);
                    }
                    Turn::Update(one) => {
                        let gradient = one.take(interpreter);
                        match &mut exchange {
                            None => {
                                update(&recording.parameters[one.place], gradient, interpreter)?;
                            }
                            Some(exchange) => {
                                let summed = exchange.offer_update(one.place, gradient)?;
                                for (place, gradient) in summed {
                                    update(&recording.parameters[place], gradient, interpreter)?;
                                    exchange.updated += 1;
                                }
                            }
                        }
                    }
                    Turn::Move(one) => {
                        room.make(one.bytes());
                        one.run(interpreter, &mut host)?;
                    }
                }
                for (tensor, value) in ready.hand_out(interpreter) {
                    // Gradients that ranks sum are not kept.
                    let kept = match &mut exchange {
                        Some(exchange) => exchange.offer(recording, tensor, value)?,
                        None => Some(value),
                    };
                    tensors.extend(kept.map(|value| (tensor, value)));
                }
                // Running on would allocate still more.
                self.planning.check_memory(Bytes::ZERO)?;
            }
            readings.end();
        }
        let loss = tensors.get(&recording.loss).cloned();
        let mut done = Done {
            loss: loss.ok_or(RecordError::LossElsewhere)?,
            tensors,
            exchange: None,
            phases: Vec::new(),
            spans: Vec::new(),
        };
        let Some(exchange) = exchange else {
            return Ok(done);
        };
        // A rejected kernel is reported with the last bucket.
        recording.check_device(&*self.planning.meter)?;
        exchange.close(done.loss)?;
        while let Some(summed) = exchange.next()? {
            for (place, gradient) in summed {
                let one = &recording.parameters[place];
                match self.planning.way.update {
                    Update::After => {
                        let number = one.gradient;
                        done.tensors.extend(number.map(|number| (number, gradient)));
                    }
                    Update::InBackward => {
                        update(one, gradient, interpreter)?;
                        exchange.updated += 1;
                    }
                }
            }
        }
        let (loss, reading) = exchange.finish()?;
        Ok(Done {
            loss,
            exchange: Some(reading),
            ..done
        })
    }
}

/// The step's outputs, by tensor number.
type Handed = HashMap<usize, DispatchTensor>;

/// The function that updates a parameter.
type UpdateHook<'a> =
    dyn FnMut(&Parameter, DispatchTensor, &mut dyn Interpreter) -> Result<(), RecordError> + 'a;

/// An interpreter that holds the tensors that exist before the step, and those of them that the step returns: the
/// batch's tensors, or a parameter.
fn start<M: Module, I: TensorTree>(
    recording: &Recording,
    model: &M,
    batch: &I,
) -> Result<(Box<dyn Interpreter>, Handed), RecordError> {
    let given = given(recording, model, batch);
    let returned = given
        .iter()
        .filter(|(one, _)| recording.auxiliary.contains(one));
    let returned = returned.cloned().collect();
    Ok((started(recording, given)?, returned))
}

/// Readings of a running step.
struct Readings<'a> {
    started: Instant,
    phases: PhaseRecorder<'a>,
    /// The current phase.
    phase: Phase,
    watched: bool,
    spans: Vec<SpanReading>,
}

impl Readings<'_> {
    fn begin(&mut self, span: &Span) {
        let phase = phase_of(span.pass, self.phase);
        if phase != self.phase {
            self.phases.end(self.phase);
            self.phase = phase;
        }
    }

    fn end(&mut self) {
        if self.watched {
            self.spans.push(SpanReading {
                memory: self.phases.read(),
                done_at: self.started.elapsed(),
            });
        }
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
