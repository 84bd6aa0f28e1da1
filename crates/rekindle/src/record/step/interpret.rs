//! A plan's program, run turn by turn.

use std::collections::HashMap;

use burn::{module::Module, tensor::DispatchTensor};
use rekindle_plan::Bytes;

use super::{readings::Readings, state::Step};
use crate::{
    record::{
        RecordError,
        bridge::Interpreter,
        exchange::Exchange,
        given::{given, started},
        host::Host,
        output::Done,
        planned::PlannedRecording,
        program::Turn,
        recording::{Parameter, Recording},
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
    pub(super) fn interpret(
        &self,
        planned: &PlannedRecording<R::Auxiliary>,
        interpreter: &mut dyn Interpreter,
        returned: Handed,
        readings: &mut Readings<'_>,
        (mut exchange, update): (Option<&mut Exchange<'_>>, &mut UpdateHook<'_>),
    ) -> Result<Done, RecordError> {
        let recording = &planned.measured.recording;
        let costs = &planned.measured.costs;
        let mut tensors = returned;
        let mut host = Host::default();
        let room = self.planning.room.as_deref();
        let make_room = |bytes: Bytes| {
            if let Some(room) = room {
                room.make(bytes);
            }
        };
        let updates = self.planning.updates();
        let mut update = |one: &Parameter, gradient, interpreter: &mut dyn Interpreter| {
            let cost = updates.of(one.id, true);
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
                // Running on would allocate still more.
                self.planning.check_memory(Bytes::ZERO)?;
            }
            readings.end();
        }
        let Some(exchange) = exchange else {
            let shared = None;
            return Ok(Done { tensors, shared });
        };
        // A rejected kernel is reported with the last bucket.
        RecordError::of_device(recording, &*self.planning.meter)?;
        let loss = tensors.get(&recording.loss).cloned();
        exchange.close(loss.ok_or(RecordError::LossElsewhere)?)?;
        while let Some(summed) = exchange.next()? {
            for (place, gradient) in summed {
                let one = &recording.parameters[place];
                match self.planning.chosen.way.update {
                    Update::After => tensors.extend(one.gradient.map(|number| (number, gradient))),
                    Update::InBackward => {
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

/// The step's outputs, by tensor number.
pub(super) type Handed = HashMap<usize, DispatchTensor>;

/// Stores an output of the step, unless it is a gradient that ranks sum. After a failed exchange nothing more is
/// exchanged.
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

/// The function that updates a parameter.
pub(super) type UpdateHook<'a> =
    dyn FnMut(&Parameter, DispatchTensor, &mut dyn Interpreter) -> Result<(), RecordError> + 'a;

/// An interpreter that holds the tensors that exist before the step, and those of them that the step returns: the
/// batch's tensors, or a parameter.
pub(super) fn start<M: Module, I: TensorTree>(
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
