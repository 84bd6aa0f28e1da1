//! All code that depends on conversions that burn allows without guaranteeing them: autodiff tensors on the recording
//! device, and operations run by burn's interpreter. `docs/upstream.md` lists the assumptions;
//! `tests/suite/record/assumptions.rs` has a test for each assumption.
//!
//! burn's capture device records operations instead of running them, and burn reports that it has no autodiff. But
//! every operation of `Autodiff<Capture>` is dispatched, so leaves that are built by hand here also record burn's own
//! backward pass.

mod device;
mod interpreter;
mod taken;
mod tensors;

use std::sync::PoisonError;

use burn::{module::Module, tensor::Device};

use super::{
    error::RecordError,
    places::{self, Place},
};
use crate::{
    activation::{Activation, device_of},
    quiet,
    step_result::StepResult,
};
pub(crate) use device::marking;
use device::{MARKS, Marks, is_recording, mark, recording_device};
pub(super) use interpreter::{Interpreter, interpreter};
pub(super) use taken::Taken;
use taken::{TakenParameter, TrackedFloat};
pub(super) use tensors::node;
use tensors::{Ids, Inputs, ToRecording, WithAutodiff, id_of, tracked_of};

/// Runs `step` and burn's backward pass of its loss on the recording device, without computing anything.
pub(super) fn take<M, I, R>(
    model: &M,
    batch: &I,
    input_gradients: bool,
    step: impl Fn(&M, I) -> R,
) -> Result<Taken<R::Auxiliary>, RecordError>
where
    M: Module,
    I: Activation,
    R: StepResult,
{
    let prepare = |_: &Device, map: &mut ToRecording| {
        // A copy with separate statistics, because recording updates them.
        let copy = model.valid().train();
        (map.replace(Place::of(model), copy), batch.clone())
    };
    let device = device_of(batch, model);
    take_with(device.as_ref(), input_gradients, prepare, step)
}

/// Like [`take`], for a model and a batch that are created on the recording device: nothing is ever allocated.
pub(super) fn take_made<M, I, R>(
    make: impl FnOnce(&Device) -> (M, I),
    step: impl Fn(&M, I) -> R,
) -> Result<Taken<R::Auxiliary>, RecordError>
where
    M: Module,
    I: Activation,
    R: StepResult,
{
    take_with(
        None,
        false,
        |device, map| {
            let (model, batch) = make(device);
            (map.replace(Place::of(&model), model), batch)
        },
        step,
    )
}

fn take_with<M, I, R>(
    device: Option<&Device>,
    input_gradients: bool,
    prepare: impl FnOnce(&Device, &mut ToRecording) -> (M, I),
    step: impl Fn(&M, I) -> R,
) -> Result<Taken<R::Auxiliary>, RecordError>
where
    M: Module,
    I: Activation,
    R: StepResult,
{
    if is_recording() {
        return Err(RecordError::Nested);
    }
    let device = recording_device(device)?;
    let device = device.lock().unwrap_or_else(PoisonError::into_inner);
    let mut outcome = None;
    let graph = device.capture_scope(|scope| {
        MARKS.set(Some(Marks {
            device: device.clone(),
            made: Vec::new(),
            depth: 0,
        }));
        let taken = quiet::catch(|| -> Result<_, RecordError> {
            let mut map = ToRecording::new(device.clone());
            let (model, batch) = prepare(&map.tracked_device(), &mut map);
            let mut leaves = Inputs {
                map: &map,
                tensors: Vec::new(),
                leaves: Vec::new(),
                trains: input_gradients,
            };
            let batch = batch.map(&mut leaves);
            let (inputs, input_leaves) = (leaves.tensors, leaves.leaves);
            let start_mark = mark(&map.device);
            let (loss, auxiliary) = step(&model, batch).split();
            let loss = tracked_of(loss)?;
            let loss_id = loss.primitive().id();
            let mut ids = Ids(Vec::new());
            auxiliary.visit(&mut ids);
            let backward_mark = mark(&map.device);
            let depends = loss.is_tracked();
            // The backward pass holds no tensor that must outlive it.
            let gradients = depends.then(|| loss.clone().backward());
            let gradient_of = |leaf: &TrackedFloat| {
                let gradient = gradients.as_ref().and_then(|all| leaf.grad(all));
                gradient.map(|gradient| gradient.id())
            };
            let input_gradients = input_leaves.iter().map(gradient_of).collect();
            for (place, leaf) in &map.leaves {
                map.parameters[*place].gradient = gradient_of(leaf);
            }
            // `train` merges pending updates, so the module's tensors now show which statistics changed.
            let after = places::tensors(&model.map(&mut WithAutodiff).train());
            let moved = |parameter: &TakenParameter| {
                let now = id_of(after.get(parameter.place)?.clone());
                (now != parameter.tensor).then_some((parameter.place, now))
            };
            let statistics = map.parameters.iter().filter_map(moved).collect();
            Ok(Taken {
                operations: Vec::new(),
                constants: Vec::new(),
                places: map.places,
                parameters: map.parameters,
                inputs,
                loss: loss_id,
                auxiliary,
                auxiliary_tensors: ids.0,
                input_gradients,
                statistics,
                marks: Vec::new(),
                start_mark,
                backward_mark,
            })
        });
        let marks = MARKS.take().map(|marks| marks.made).unwrap_or_default();
        outcome = Some((taken, marks));
        scope.complete([], [])
    });
    drop(device);
    let graph = graph.map_err(|error| RecordError::Capture(error.to_string()))?;
    let operations = graph.graph.operations;
    let Some((taken, marks)) = outcome else {
        return Err(RecordError::Capture("nothing was recorded".into()));
    };
    match taken {
        Ok(taken) => {
            let mut taken = taken?;
            taken.operations = operations;
            taken.constants = graph.values.into_iter().collect();
            taken.marks = marks;
            Ok(taken)
        }
        Err(panic) => Err(RecordError::of_panic(&panic, operations.last())),
    }
}
