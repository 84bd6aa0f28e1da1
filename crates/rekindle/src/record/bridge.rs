//! All code that depends on conversions that burn allows without guaranteeing them: autodiff tensors on the recording
//! device (`device.rs`, `tensors.rs`, `node.rs`, `reads.rs`), and operations run by burn's interpreter (`interpreter.rs`).
//! `known_gradient.rs` and `reduce/synchronised.rs` have the two operations of our own. `docs/upstream.md` lists the
//! assumptions; `tests/suite/record/assumptions.rs` has a test for each assumption.
//!
//! burn's capture device records operations instead of running them, and burn reports that it has no autodiff. But
//! every operation of `Autodiff<Capture>` is dispatched, so leaves that are built by hand here also record burn's own
//! backward pass.

mod device;
mod interpreter;
mod node;
mod reads;
mod tensors;

use std::sync::PoisonError;

use burn::{module::Module, tensor::Device};
use burn_ir::{OperationIr, TensorId};

use super::{
    error::{BACKWARD, RecordError},
    leaf::free_dead_nodes,
    places::{self, Parameter, Place},
    recording::{Captured, Recording},
    update::Update,
};
use crate::{
    quiet,
    step_result::StepResult,
    tensor_tree::{TensorTree, device_of},
};
pub(crate) use device::marking;
use device::{MARKS, Marks, is_recording, mark, recording_device, start_step};
pub(super) use interpreter::{Interpreter, interpreter};
pub(super) use node::node;
use reads::without_reads;
pub(crate) use tensors::without_graph;
use tensors::{
    Ids, Inputs, ToRecording, WithAutodiff, WithoutAutodiff, id_of, place_of_backward,
    tracked_device, tracked_of,
};

/// Runs `step` and burn's backward pass of its loss on the recording device, without computing anything. `places` are
/// the model's. Returns what was recorded, and the auxiliary output.
pub(super) fn take<M, I, R>(
    model: &M,
    places: &[Place],
    batch: &I,
    step: impl Fn(&M, I) -> R,
    update: Update,
) -> Result<(Recording, R::Auxiliary), RecordError>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
{
    let device = device_of(batch, model);
    let taken = take_with(device.as_ref(), own(model, places, batch), step, true)?;
    let moved: Vec<usize> = taken.statistics.iter().map(|one| one.0).collect();
    match places::shared_statistics(model, places, &moved) {
        None => Ok(Recording::new(taken, update)),
        Some(place) => {
            let own = taken.parameters.into_iter().find(|own| own.place == place);
            let path = own.map(|own| own.path).unwrap_or_default();
            Err(RecordError::Unrecordable(format!(
                "two batch norms share the running statistics `{path}`, and both move them in one step. Give a frozen clone \
                 its own by `.valid().train().no_grad()`, or use one batch norm and `rekindle::reused`"
            )))
        }
    }
}

/// Runs `step` on the recording device with no parameter that is tracked, and no backward pass. Returns a hash of what was
/// recorded, and the auxiliary output.
pub(super) fn look<M, I, R>(
    model: &M,
    places: &[Place],
    batch: &I,
    step: impl Fn(&M, I) -> R,
) -> Result<(u64, R::Auxiliary), RecordError>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
{
    let device = device_of(batch, model);
    let taken = take_with(device.as_ref(), own(model, places, batch), step, false);
    // burn keeps what it notes of operations, tracked or not, until the next backward pass.
    device.inspect(free_dead_nodes);
    Ok(taken?.hashed())
}

/// A copy with separate statistics, because recording updates them.
fn own<M: Module, I: TensorTree>(
    model: &M,
    places: &[Place],
    batch: &I,
) -> impl FnOnce(&Device) -> (Vec<Place>, M, I) {
    |_| (places.to_vec(), places::apart(model), batch.clone())
}

/// Like [`take`], for a model and a batch that are created on the recording device: nothing is ever allocated.
pub(super) fn take_made<M, I, R>(
    make: impl FnOnce(&Device) -> (M, I),
    step: impl Fn(&M, I) -> R,
    update: Update,
) -> Result<(Recording, R::Auxiliary), RecordError>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
{
    let prepare = |device: &Device| {
        let (model, batch) = make(device);
        (Place::of(&model), model, batch)
    };
    Ok(Recording::new(
        take_with(None, prepare, step, true)?,
        update,
    ))
}

fn take_with<M, I, R>(
    device: Option<&Device>,
    prepare: impl FnOnce(&Device) -> (Vec<Place>, M, I),
    step: impl Fn(&M, I) -> R,
    tracked: bool,
) -> Result<Captured<R::Auxiliary>, RecordError>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
{
    in_scope(device, |device| {
        let (places, model, batch) = prepare(&tracked_device(device));
        let mut map = ToRecording::new(device.clone(), places, tracked);
        let model = model.map(&mut map);
        let mut inputs = Inputs {
            device,
            tensors: Vec::new(),
        };
        let batch = batch.map(&mut inputs);
        let inputs = inputs.tensors;
        let before = start_step(device);
        let (loss, auxiliary) = step(&model, batch).split();
        let loss = tracked_of(loss)?;
        let loss_id = loss.primitive().id();
        let mut ids = Ids(Vec::new());
        auxiliary.visit(&mut ids);
        let (backward_mark, after) = mark(device);
        let depends = loss.is_tracked();
        // The backward pass holds no tensor that must outlive it.
        let gradients = depends.then(|| loss.clone().backward());
        for (place, leaf) in &map.leaves {
            let gradient = gradients.as_ref().and_then(|all| leaf.grad(all));
            map.parameters[*place].gradient = gradient.map(|gradient| gradient.id());
        }
        let trains = map.places.iter().all(|place| place.trains);
        let statistics = if trains {
            Vec::new()
        } else {
            moved(&model, &map.parameters)
        };
        Ok(Captured {
            operations: Vec::new(),
            constants: Vec::new(),
            places: map.places,
            parameters: map.parameters,
            inputs,
            loss: loss_id,
            auxiliary,
            auxiliary_tensors: ids.0,
            statistics,
            marks: Vec::new(),
            start: 0,
            backward_mark,
            nodes: after - before,
        })
    })
}

/// If this thread is recording, gives a module's running statistics their pending values, without autodiff: where a module
/// uses them again, burn moves them to the device of its input.
pub(crate) fn merge_recorded<M: Module>(module: &M) {
    if is_recording() {
        drop(merged(module));
        // Clones share their statistics.
        drop(module.clone().map(&mut WithoutAutodiff));
    }
}

/// A copy of a module with its pending running statistics.
fn merged<M: Module>(module: &M) -> M {
    module.clone().map(&mut WithAutodiff).train()
}

/// The statistics that have a new value, by place.
fn moved<M: Module>(model: &M, parameters: &[Parameter<TensorId>]) -> Vec<(usize, TensorId)> {
    let after = places::tensors(&merged(model));
    let moved = |parameter: &Parameter<TensorId>| {
        let now = id_of(after.get(parameter.place)?.clone());
        (now != parameter.tensor).then_some((parameter.place, now))
    };
    parameters.iter().filter_map(moved).collect()
}

/// Runs `step` on the recording device, and completes its result with what was recorded.
fn in_scope<A>(
    device: Option<&Device>,
    step: impl FnOnce(&Device) -> Result<Captured<A>, RecordError>,
) -> Result<Captured<A>, RecordError> {
    if is_recording() {
        return Err(RecordError::Unrecordable(
            "a step cannot be recorded while another is being recorded on the same thread".into(),
        ));
    }
    let device = recording_device(device)?;
    let device = device.lock().unwrap_or_else(PoisonError::into_inner);
    let mut outcome = None;
    let graph = device.capture_scope(|scope| {
        MARKS.set(Some(Marks::new(device.clone())));
        let ran = quiet::catch(|| without_reads(|| step(&device)));
        let ran = ran.map_err(|panic| {
            let place = quiet::place();
            if place.is_some() && place == place_of_backward(&device) {
                BACKWARD.to_owned()
            } else {
                panic
            }
        });
        outcome = MARKS.take().map(|marks| (ran, marks));
        scope.complete([], [])
    });
    let graph = graph.map_err(|error| RecordError::Capture(error.to_string()))?;
    let Some((ran, marks)) = outcome else {
        return Err(RecordError::Capture("nothing was recorded".into()));
    };
    let operations = graph.graph.operations;
    let starts = |one: &OperationIr| one.outputs().any(|made| Some(made.id) == marks.start);
    let start = operations.iter().position(starts);
    let start = start.unwrap_or(operations.len());
    let taken = ran.map_err(|panic| RecordError::of_panic(&panic, &operations[start..]))?;
    Ok(Captured {
        constants: graph.values.into_iter().collect(),
        marks: marks.made,
        start,
        operations,
        ..taken?
    })
}
