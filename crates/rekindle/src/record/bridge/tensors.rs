//! A model's and a batch's tensors on the recording device, and their ids there.

use std::{any::Any, collections::HashMap};

use burn::{
    module::{ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Bool, DType, Device, DispatchTensor, Int, Shape, Tensor},
};
use burn_backend::{AutodiffBackend, BackendTypes};
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::{BackendTensor, DispatchKindConversion};
use burn_ir::TensorId;

use super::taken::{TakenInput, TakenParameter, TrackedBackend, TrackedFloat};
use crate::{
    activation::{ActivationMapper, visit_alike},
    record::error::{FOREIGN, RecordError},
};

pub(super) fn capture_of<const D: usize>(
    tensor: Tensor<D>,
) -> <Capture as BackendTypes>::FloatTensorPrimitive {
    match tensor.try_into_primitive::<Capture>() {
        Ok(primitive) => primitive,
        Err(error) => panic!("{FOREIGN}: {error:?}"),
    }
}

pub(super) fn tracked_of<const D: usize>(tensor: Tensor<D>) -> Result<TrackedFloat, RecordError> {
    let untracked = tensor.clone();
    tensor
        .try_into_primitive::<TrackedBackend>()
        .or_else(|_| {
            untracked
                .try_into_primitive::<Capture>()
                .map(TrackedBackend::from_inner)
        })
        .map_err(|_| RecordError::LossElsewhere)
}

/// Replaces a module's tensors by empty ones of the same shapes on the recording device.
pub(super) struct ToRecording {
    pub(super) device: Device,
    path: Vec<String>,
    pub(super) parameters: Vec<TakenParameter>,
    pub(super) leaves: Vec<(usize, TrackedFloat)>,
    /// Parameters with the same id are one tensor.
    known: HashMap<ParamId, Box<dyn Any>>,
}

impl ToRecording {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            path: Vec::new(),
            parameters: Vec::new(),
            leaves: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// The recording device with autodiff, as tensors report it.
    pub(super) fn tracked_device(&self) -> Device {
        let any = capture_of(Tensor::<1>::empty([1], &self.device));
        Tensor::<1>::from_primitive::<TrackedBackend>(TrackedBackend::from_inner(any)).device()
    }

    fn float<const D: usize>(&self, shape: Shape, dtype: DType, trains: bool) -> TrackedFloat {
        let empty = Tensor::<D>::empty(shape, (&self.device, dtype));
        let tensor = TrackedBackend::from_inner(capture_of(empty));
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
            Tensor::<D>::from_primitive::<TrackedBackend>(leaf)
        } else {
            // Without autodiff: `forward` moves running statistics to the input's device, which burn does not support
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
    (Tensor::from_primitive::<TrackedBackend>(primitive), id)
}

fn bool<const D: usize>(device: &Device, like: &Tensor<D, Bool>) -> (Tensor<D, Bool>, TensorId) {
    let empty = Tensor::<D, Bool>::empty(like.shape(), (device, like.dtype()));
    let Ok(primitive) = empty.try_into_primitive::<Capture>() else {
        panic!("{FOREIGN}");
    };
    let id = primitive.id();
    (Tensor::from_primitive::<TrackedBackend>(primitive), id)
}

/// Replaces a batch's tensors by tensors on the recording device.
pub(super) struct Inputs<'a> {
    pub(super) map: &'a ToRecording,
    pub(super) tensors: Vec<TakenInput>,
    /// Leaves of the float tensors, in order.
    pub(super) leaves: Vec<TrackedFloat>,
    pub(super) trains: bool,
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
        Tensor::from_primitive::<TrackedBackend>(leaf)
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
pub(super) struct Ids(pub(super) Vec<TensorId>);

visit_alike!(Ids, |self, tensor| {
    self.0.push(id_of(tensor.clone().into_dispatch()));
});

/// The id of a recorded tensor, tracked or not.
pub(super) fn id_of(tensor: DispatchTensor) -> TensorId {
    let tracked = <DispatchTensor as DispatchKindConversion<TrackedBackend>>::try_into_backend(
        tensor.clone(),
    );
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

/// Adds autodiff to the recorded tensors that have none. Done by hand, because burn does not support it.
pub(super) struct WithAutodiff;

impl ModuleMapper for WithAutodiff {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = match tensor.clone().try_into_primitive::<Capture>() {
            Ok(plain) => {
                Tensor::from_primitive::<TrackedBackend>(TrackedBackend::from_inner(plain))
            }
            Err(_) => tensor,
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// The tensors that a recorded module holds.
pub(super) struct Held(pub(super) HashMap<ParamId, TensorId>);

impl ModuleVisitor for Held {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.insert(param.id, id_of(param.val().into_dispatch()));
    }
}
