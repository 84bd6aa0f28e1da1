//! All that leans on conversions which burn leaves open and does not promise: tensors of the recording device as
//! autodiff's, and operations run by burn's interpreter. `docs/upstream.md` lists what is assumed;
//! `tests/suite/record/assumptions.rs` has a test for each assumption.
//!
//! burn's capture device records operations in place of running them, and burn says that it has no autodiff. But every
//! operation of `Autodiff<Capture>` is dispatched, so that leaves made here by hand record burn's own backward too.

use std::{
    any::Any,
    cell::RefCell,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{
        Bool, DType, Device, DeviceConfig, DeviceSettings, DispatchTensor, Int, Shape, Tensor,
        TensorData,
    },
};
use burn_backend::{AutodiffBackend, BackendTypes, DeviceError, DeviceOps, set_default_dtypes};
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::{
    BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensorKind, backends::Autodiff,
};
use burn_ir::{BackendIr, HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;

use super::error::{FOREIGN, RecordError};
use crate::{
    activation::{Activation, ActivationMapper, ActivationVisitor, device_of},
    quiet,
};

type Tracked = Autodiff<Capture>;
type TrackedFloat = <Tracked as BackendTypes>::FloatTensorPrimitive;

/// What one run of a step on the recording device leaves: ids are those of the recording.
pub(super) struct Taken<A> {
    /// Forward, loss and burn's backward, in burn's order.
    pub(super) operations: Vec<OperationIr>,
    /// Tensors made of numbers of the host.
    pub(super) constants: Vec<(TensorId, TensorData)>,
    /// All tensors that the module holds, running statistics too.
    pub(super) parameters: Vec<TakenParameter>,
    /// The batch's tensors.
    pub(super) inputs: Vec<TakenInput>,
    /// The loss.
    pub(super) loss: TensorId,
    /// What else the step returned, on the recording device, and its tensors.
    pub(super) auxiliary: A,
    pub(super) auxiliary_tensors: Vec<TensorId>,
    /// Gradients of the batch's float tensors, where wanted; `None` where the loss does not depend on one.
    pub(super) input_gradients: Vec<Option<TensorId>>,
    /// New values of running statistics.
    pub(super) statistics: Vec<(ParamId, TensorId)>,
    /// Made by the marks of stages: the tensor's place among the operations is the mark's.
    pub(super) marks: Vec<TensorId>,
    /// Made when model and batch were there, before the step.
    pub(super) start_mark: TensorId,
    /// Made after the loss and before its backward.
    pub(super) backward_mark: TensorId,
}

/// A tensor of the module.
pub(super) struct TakenParameter {
    pub(super) id: ParamId,
    /// Where the module has it: `layers.1.weight`.
    pub(super) path: String,
    pub(super) tensor: TensorId,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    /// Its gradient, if it trains and the loss depends on it.
    pub(super) gradient: Option<TensorId>,
    pub(super) trains: bool,
}

/// A tensor of the batch.
pub(super) struct TakenInput {
    pub(super) tensor: TensorId,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
}

/// What a step's closure returns: the loss, or the loss and more.
pub trait StepResult {
    /// What is returned besides the loss.
    type Auxiliary: Activation;

    /// The loss, a tensor of one element, and the rest.
    fn split(self) -> (Tensor<1>, Self::Auxiliary);
}

impl StepResult for Tensor<1> {
    type Auxiliary = ();

    fn split(self) -> (Tensor<1>, ()) {
        (self, ())
    }
}

impl<A: Activation> StepResult for (Tensor<1>, A) {
    type Auxiliary = A;

    fn split(self) -> (Tensor<1>, A) {
        self
    }
}

/// The recording device whose default types are those of `device`, so that what the step makes itself (positions,
/// masks, the places of a pool's maxima) has the type that it has there. burn has numbers for 65,536 recording devices
/// in a process, and a device's defaults are set once: one is made for each set of defaults, and used by one thread at a
/// time.
fn recording_device(device: Option<&Device>) -> Result<Arc<Mutex<Device>>, RecordError> {
    /// What burn's tensors take, and what autodiff takes, which asks the backend.
    type Defaults = [DeviceSettings; 2];
    type Made = Vec<(Option<Defaults>, Arc<Mutex<Device>>)>;
    static MADE: Mutex<Made> = Mutex::new(Vec::new());
    let defaults = device.map(|device| [device.settings(), device.as_dispatch().defaults()]);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = made.iter().find(|(of, _)| *of == defaults) {
        return Ok(device.clone());
    }
    let device = Device::capture();
    if let Some([tensors, backend]) = defaults {
        let mut configured = Ok(());
        // Which types there are is asked of the device, and answered in a scope alone.
        let empty = device.capture_scope(|scope| {
            configured = configure(&device, &tensors, &backend);
            scope.complete([], [])
        });
        let wrong = |error: &dyn std::fmt::Display| RecordError::Capture(error.to_string());
        configured.map_err(|error| wrong(&error))?;
        empty.map_err(|error| wrong(&error))?;
    }
    let device = Arc::new(Mutex::new(device));
    made.push((defaults, device.clone()));
    Ok(device)
}

fn configure(
    device: &Device,
    tensors: &DeviceSettings,
    backend: &DeviceSettings,
) -> Result<(), DeviceError> {
    let config = DeviceConfig::default()
        .float_dtype(tensors.float_dtype)
        .int_dtype(tensors.int_dtype)
        .bool_dtype(tensors.bool_dtype);
    device.clone().configure(config)?;
    let DispatchDevice::Capture(inner) = device.as_dispatch() else {
        unreachable!("a recording device");
    };
    set_default_dtypes::<Capture>(
        inner,
        backend.float_dtype,
        backend.int_dtype,
        backend.bool_dtype,
    )
}

/// The marks of a recording that runs on this thread.
struct Marks {
    device: Device,
    made: Vec<TensorId>,
    /// Chains inside a stage of another chain leave none.
    depth: usize,
}

thread_local! {
    static MARKS: RefCell<Option<Marks>> = const { RefCell::new(None) };
}

/// Marks the borders between the stages of a chain, if this thread records: `run` is given what makes a mark.
pub(crate) fn marking<T>(run: impl FnOnce(&dyn Fn()) -> T) -> T {
    let deeper = |by: isize| {
        MARKS.with_borrow_mut(|marks| {
            if let Some(marks) = marks {
                marks.depth = marks.depth.saturating_add_signed(by);
            }
        });
    };
    deeper(1);
    let result = run(&|| {
        MARKS.with_borrow_mut(|marks| {
            if let Some(marks) = marks.as_mut().filter(|marks| marks.depth == 1) {
                marks.made.push(mark(&marks.device));
            }
        });
    });
    deeper(-1);
    result
}

/// Whether this thread records.
fn is_recording() -> bool {
    MARKS.with_borrow(Option::is_some)
}

fn mark(device: &Device) -> TensorId {
    capture_of(Tensor::<1>::empty([1], device)).id()
}

/// Runs `step` on the recording device, and burn's backward of its loss, without computing anything.
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
    // A copy with statistics of its own: the recording moves them.
    let prepare =
        |_: &Device, map: &mut ToRecording| (model.valid().train().map(map), batch.clone());
    let device = device_of(batch, model);
    take_with(device.as_ref(), input_gradients, prepare, step)
}

/// As [`take`], of a model and a batch that are made on the recording device: nothing is ever allocated.
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
            (model.map(map), batch)
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
            // Operations of the backward hold nothing that must outlive it.
            let gradients = depends.then(|| loss.clone().backward());
            let gradient_of = |leaf: &TrackedFloat| {
                let gradient = gradients.as_ref().and_then(|all| leaf.grad(all));
                gradient.map(|gradient| gradient.id())
            };
            let input_gradients = input_leaves.iter().map(gradient_of).collect();
            for (place, leaf) in &map.leaves {
                map.parameters[*place].gradient = gradient_of(leaf);
            }
            // What the module holds now tells which statistics moved: `train` takes in pending updates.
            let mut after = Held(HashMap::new());
            model.map(&mut WithAutodiff).train().visit(&mut after);
            let moved = |parameter: &TakenParameter| {
                let now = after.0.get(&parameter.id).copied()?;
                (now != parameter.tensor).then_some((parameter.id, now))
            };
            let statistics = map.parameters.iter().filter_map(moved).collect();
            Ok(Taken {
                operations: Vec::new(),
                constants: Vec::new(),
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

fn capture_of<const D: usize>(
    tensor: Tensor<D>,
) -> <Capture as BackendTypes>::FloatTensorPrimitive {
    match tensor.try_into_primitive::<Capture>() {
        Ok(primitive) => primitive,
        Err(error) => panic!("{FOREIGN}: {error:?}"),
    }
}

fn tracked_of<const D: usize>(tensor: Tensor<D>) -> Result<TrackedFloat, RecordError> {
    let untracked = tensor.clone();
    tensor
        .try_into_primitive::<Tracked>()
        .or_else(|_| {
            untracked
                .try_into_primitive::<Capture>()
                .map(Tracked::from_inner)
        })
        .map_err(|_| RecordError::LossElsewhere)
}

/// Puts a module's tensors on the recording device: empty ones of the same shapes.
struct ToRecording {
    device: Device,
    path: Vec<String>,
    parameters: Vec<TakenParameter>,
    leaves: Vec<(usize, TrackedFloat)>,
    /// Parameters of one id are one tensor.
    known: HashMap<ParamId, Box<dyn Any>>,
}

impl ToRecording {
    fn new(device: Device) -> Self {
        Self {
            device,
            path: Vec::new(),
            parameters: Vec::new(),
            leaves: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// The recording device with autodiff, as tensors report it.
    fn tracked_device(&self) -> Device {
        let any = capture_of(Tensor::<1>::empty([1], &self.device));
        Tensor::<1>::from_primitive::<Tracked>(Tracked::from_inner(any)).device()
    }

    fn float<const D: usize>(&self, shape: Shape, dtype: DType, trains: bool) -> TrackedFloat {
        let empty = Tensor::<D>::empty(shape, (&self.device, dtype));
        let tensor = Tracked::from_inner(capture_of(empty));
        if trains {
            tensor.require_grad()
        } else {
            tensor
        }
    }

    fn known<T: Clone + 'static>(&self, id: ParamId) -> Option<T> {
        self.known.get(&id)?.downcast_ref::<T>().cloned()
    }

    fn note(&mut self, id: ParamId, tensor: TensorId, shape: Shape, dtype: DType, trains: bool) {
        self.parameters.push(TakenParameter {
            id,
            path: self.path.join("."),
            tensor,
            shape,
            dtype,
            gradient: None,
            trains,
        });
    }
}

impl ModuleMapper for ToRecording {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        if let Some(known) = self.known::<Tensor<D>>(id) {
            return Param::from_mapped_value(id, known, mapper);
        }
        let (shape, dtype, trains) = (tensor.shape(), tensor.dtype(), tensor.is_require_grad());
        let recorded = if trains {
            let leaf = self.float::<D>(shape.clone(), dtype, true);
            self.note(id, leaf.primitive().id(), shape, dtype, true);
            self.leaves.push((self.parameters.len() - 1, leaf.clone()));
            Tensor::<D>::from_primitive::<Tracked>(leaf)
        } else {
            // Without autodiff: running statistics are moved to the input's device in `forward`, which burn refuses
            // for recorded tensors with autodiff.
            let plain = capture_of(Tensor::<D>::empty(shape.clone(), (&self.device, dtype)));
            self.note(id, plain.id(), shape, dtype, false);
            Tensor::<D>::from_primitive::<Capture>(plain)
        };
        self.known.insert(id, Box::new(recorded.clone()));
        Param::from_mapped_value(id, recorded, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, tensor, mapper) = param.consume();
        if let Some(known) = self.known::<Tensor<D, Int>>(id) {
            return Param::from_mapped_value(id, known, mapper);
        }
        let (recorded, tensor_id) = int(&self.device, &tensor);
        self.note(id, tensor_id, tensor.shape(), tensor.dtype(), false);
        self.known.insert(id, Box::new(recorded.clone()));
        Param::from_mapped_value(id, recorded, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        if let Some(known) = self.known::<Tensor<D, Bool>>(id) {
            return Param::from_mapped_value(id, known, mapper);
        }
        let (recorded, tensor_id) = bool(&self.device, &tensor);
        self.note(id, tensor_id, tensor.shape(), tensor.dtype(), false);
        self.known.insert(id, Box::new(recorded.clone()));
        Param::from_mapped_value(id, recorded, mapper)
    }
}

fn int<const D: usize>(device: &Device, like: &Tensor<D, Int>) -> (Tensor<D, Int>, TensorId) {
    let empty = Tensor::<D, Int>::empty(like.shape(), (device, like.dtype()));
    let Ok(primitive) = empty.try_into_primitive::<Capture>() else {
        panic!("{FOREIGN}");
    };
    let id = primitive.id();
    (Tensor::from_primitive::<Tracked>(primitive), id)
}

fn bool<const D: usize>(device: &Device, like: &Tensor<D, Bool>) -> (Tensor<D, Bool>, TensorId) {
    let empty = Tensor::<D, Bool>::empty(like.shape(), (device, like.dtype()));
    let Ok(primitive) = empty.try_into_primitive::<Capture>() else {
        panic!("{FOREIGN}");
    };
    let id = primitive.id();
    (Tensor::from_primitive::<Tracked>(primitive), id)
}

/// Puts a batch on the recording device.
struct Inputs<'a> {
    map: &'a ToRecording,
    tensors: Vec<TakenInput>,
    /// Of the float tensors, in order.
    leaves: Vec<TrackedFloat>,
    trains: bool,
}

impl Inputs<'_> {
    fn note(&mut self, tensor: TensorId, shape: Shape, dtype: DType) {
        self.tensors.push(TakenInput {
            tensor,
            shape,
            dtype,
        });
    }
}

impl ActivationMapper for Inputs<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let leaf = self.map.float::<D>(shape.clone(), dtype, self.trains);
        self.note(leaf.primitive().id(), shape, dtype);
        self.leaves.push(leaf.clone());
        Tensor::from_primitive::<Tracked>(leaf)
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        let (recorded, id) = int(&self.map.device, &tensor);
        self.note(id, tensor.shape(), tensor.dtype());
        recorded
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        let (recorded, id) = bool(&self.map.device, &tensor);
        self.note(id, tensor.shape(), tensor.dtype());
        recorded
    }
}

/// The ids of recorded tensors.
struct Ids(Vec<TensorId>);

impl ActivationVisitor for Ids {
    fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
        self.0.push(id_of(tensor.clone().into_dispatch()));
    }

    fn int<const D: usize>(&mut self, tensor: &Tensor<D, Int>) {
        self.0.push(id_of(tensor.clone().into_dispatch()));
    }

    fn bool<const D: usize>(&mut self, tensor: &Tensor<D, Bool>) {
        self.0.push(id_of(tensor.clone().into_dispatch()));
    }
}

/// The id of a recorded tensor, tracked or not.
fn id_of(tensor: DispatchTensor) -> TensorId {
    let tracked =
        <DispatchTensor as DispatchKindConversion<Tracked>>::try_into_backend(tensor.clone());
    match tracked {
        Ok(BackendTensor::Float(tensor)) => return tensor.primitive().id(),
        Ok(BackendTensor::Int(tensor) | BackendTensor::Bool(tensor)) => return tensor.id(),
        Ok(_) | Err(_) => {}
    }
    match <DispatchTensor as DispatchKindConversion<Capture>>::try_into_backend(tensor) {
        Ok(
            BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor),
        ) => tensor.id(),
        Ok(_) | Err(_) => panic!("{FOREIGN}"),
    }
}

/// Gives autodiff to the recorded tensors that have none, by hand: burn refuses.
struct WithAutodiff;

impl ModuleMapper for WithAutodiff {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = match tensor.clone().try_into_primitive::<Capture>() {
            Ok(plain) => Tensor::from_primitive::<Tracked>(Tracked::from_inner(plain)),
            Err(_) => tensor,
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// The tensors that a recorded module holds.
struct Held(HashMap<ParamId, TensorId>);

impl ModuleVisitor for Held {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.insert(param.id, id_of(param.val().into_dispatch()));
    }
}

/// Operations on one device, run one by one.
pub(super) trait Interpreter {
    /// Gives a tensor, without autodiff.
    fn give(&mut self, id: TensorId, tensor: DispatchTensor);
    /// Gives a tensor's numbers.
    fn give_data(&mut self, id: TensorId, data: TensorData);
    /// Runs an operation.
    fn run(&mut self, operation: OperationIr);
    /// Hands a tensor out.
    fn hand_out(&mut self, tensor: &TensorIr) -> DispatchTensor;
}

/// An interpreter on the device where `tensor` is.
pub(super) fn interpreter(tensor: &DispatchTensor) -> Result<Box<dyn Interpreter>, RecordError> {
    match &tensor.kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => on::<burn_dispatch::backends::Flex>(tensor),
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) => on::<burn_dispatch::backends::Cube>(tensor),
        #[allow(
            unreachable_patterns,
            reason = "reached in builds without all backends"
        )]
        _ => Err(RecordError::Backend),
    }
}

fn on<B>(tensor: &DispatchTensor) -> Result<Box<dyn Interpreter>, RecordError>
where
    B: BackendIr,
    DispatchTensor: DispatchKindConversion<B>,
{
    use burn_backend::TensorMetadata;
    let device = match handle::<B>(tensor.clone()) {
        HandleKind::Float(tensor) => tensor.device(),
        HandleKind::Int(tensor) => tensor.device(),
        HandleKind::Bool(tensor) => tensor.device(),
        HandleKind::Quantized(_) => return Err(RecordError::Backend),
    };
    Ok(Box::new(TensorInterpreter::<B>::new(device)))
}

fn handle<B>(tensor: DispatchTensor) -> HandleKind<B>
where
    B: BackendIr,
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => HandleKind::Float(tensor),
        Ok(BackendTensor::Int(tensor)) => HandleKind::Int(tensor),
        Ok(BackendTensor::Bool(tensor)) => HandleKind::Bool(tensor),
        Ok(_) => panic!("a quantized tensor or one with autodiff"),
        Err(error) => panic!("{error}"),
    }
}

impl<B> Interpreter for TensorInterpreter<B>
where
    B: BackendIr,
    DispatchTensor: DispatchKindConversion<B>,
{
    fn give(&mut self, id: TensorId, tensor: DispatchTensor) {
        self.register_tensor_to_device(id, handle::<B>(tensor));
    }

    fn give_data(&mut self, id: TensorId, data: TensorData) {
        self.register_tensor_data_id(id, data);
    }

    fn run(&mut self, operation: OperationIr) {
        self.register_op(operation);
    }

    fn hand_out(&mut self, tensor: &TensorIr) -> DispatchTensor {
        let mut tensor = tensor.clone();
        tensor.status = TensorStatus::ReadOnly;
        let tensor = match self.get_tensor(&tensor) {
            HandleKind::Float(tensor) => BackendTensor::Float(tensor),
            HandleKind::Int(tensor) => BackendTensor::Int(tensor),
            HandleKind::Bool(tensor) => BackendTensor::Bool(tensor),
            HandleKind::Quantized(tensor) => BackendTensor::Quantized(tensor),
        };
        <DispatchTensor as DispatchKindConversion<B>>::from_backend(tensor)
    }
}
