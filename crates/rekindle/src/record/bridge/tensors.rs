//! A model's and a batch's tensors on the recording device, and their ids there.

use burn::{
    module::{ModuleMapper, Param},
    tensor::{Bool, Device, DispatchTensor, Int, Tensor, kind::Basic},
};
use burn_backend::{AutodiffBackend, BackendTypes};
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::{
    BackendTensor, DispatchKindConversion, DispatchTensorKind, backends::Autodiff,
};
use burn_ir::{TensorId, TensorIr};

use crate::{
    quiet,
    record::{
        error::{FOREIGN, RecordError},
        places::{Parameter, Place},
    },
    tensor_tree::{map_alike, visit_alike},
};

type TrackedBackend = Autodiff<Capture>;
type TrackedFloat = <TrackedBackend as BackendTypes>::FloatTensorPrimitive;

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

fn any_tracked(device: &Device) -> Tensor<1> {
    let any = capture_of(Tensor::<1>::empty([1], device));
    Tensor::from_primitive::<TrackedBackend>(TrackedBackend::from_inner(any))
}

/// The recording device with autodiff, as tensors report it.
pub(super) fn tracked_device(device: &Device) -> Device {
    any_tracked(device).device()
}

/// Where burn panics if a step calls `backward`: it does so in the same words for `inner`.
pub(super) fn place_of_backward(device: &Device) -> Option<String> {
    let leaf = any_tracked(device).require_grad();
    quiet::catch(|| leaf.backward()).err()?;
    quiet::place()
}

/// Replaces a module's tensors by empty ones of the same shapes on the recording device.
pub(super) struct ToRecording {
    device: Device,
    path: Vec<String>,
    pub(super) places: Vec<Place>,
    pub(super) parameters: Vec<Parameter<TensorId>>,
    pub(super) leaves: Vec<(usize, TrackedFloat)>,
    /// The tensors of the places so far.
    made: Vec<DispatchTensor>,
    /// Whether burn's graph holds the operations on trained parameters.
    tracked: bool,
}

impl ToRecording {
    /// For a copy of a module with these places.
    pub(super) fn new(device: Device, places: Vec<Place>, tracked: bool) -> Self {
        Self {
            device,
            tracked,
            path: Vec::new(),
            made: Vec::with_capacity(places.len()),
            places,
            parameters: Vec::new(),
            leaves: Vec::new(),
        }
    }

    /// The tensor of the next place: that of its first one, or what `make` makes.
    fn next<const D: usize, K: Basic>(
        &mut self,
        make: impl FnOnce(&mut Self, usize) -> Tensor<D, K>,
    ) -> Tensor<D, K> {
        let place = self.made.len();
        let known = self.made.get(self.places[place].first).cloned();
        let tensor = known.map(Tensor::from_dispatch);
        let tensor = tensor.unwrap_or_else(|| {
            let made = make(self, place);
            self.parameters.push(Parameter {
                id: self.places[place].id,
                place,
                path: self.path.join("."),
                tensor: id_of(made.clone().into_dispatch()),
                gradient: None,
                trains: self.places[place].trains,
            });
            made
        });
        self.made.push(tensor.clone().into_dispatch());
        tensor
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
        let (shape, dtype) = (param.shape(), param.dtype());
        let recorded = self.next(|map, place| {
            let plain = capture_of(Tensor::<D>::empty(shape, (&map.device, dtype)));
            if map.places[place].trains {
                let mut leaf = TrackedBackend::from_inner(plain);
                if map.tracked {
                    leaf = leaf.require_grad();
                    map.leaves.push((map.parameters.len(), leaf.clone()));
                }
                Tensor::<D>::from_primitive::<TrackedBackend>(leaf)
            } else {
                // Without autodiff: `forward` moves running statistics to the input's device, which burn does not
                // support for recorded tensors with autodiff.
                Tensor::<D>::from_primitive::<Capture>(plain)
            }
        });
        param.map(|_| recorded)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| self.next(|map, _| recorded(&map.device, &tensor)))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        param.map(|tensor| self.next(|map, _| recorded(&map.device, &tensor)))
    }
}

/// An empty tensor of the same shape and type on the recording device, a float with autodiff.
fn recorded<const D: usize, K: Basic>(device: &Device, like: &Tensor<D, K>) -> Tensor<D, K> {
    let empty = Tensor::<D, K>::empty(like.shape(), (device, like.dtype())).into_dispatch();
    let plain = <DispatchTensor as DispatchKindConversion<Capture>>::try_into_backend(empty);
    let tensor: BackendTensor<TrackedBackend> = match plain {
        Ok(BackendTensor::Float(tensor)) => {
            BackendTensor::Float(TrackedBackend::from_inner(tensor))
        }
        Ok(BackendTensor::Int(tensor)) => BackendTensor::Int(tensor),
        Ok(BackendTensor::Bool(tensor)) => BackendTensor::Bool(tensor),
        Ok(_) | Err(_) => panic!("{FOREIGN}"),
    };
    let tensor = <DispatchTensor as DispatchKindConversion<TrackedBackend>>::from_backend(tensor);
    Tensor::from_dispatch(tensor)
}

/// Replaces a batch's tensors by tensors on the recording device.
pub(super) struct Inputs<'a> {
    pub(super) device: &'a Device,
    pub(super) tensors: Vec<TensorIr>,
}

impl Inputs<'_> {
    fn next<const D: usize, K: Basic>(&mut self, like: &Tensor<D, K>) -> Tensor<D, K> {
        let tensor = recorded(self.device, like);
        let id = id_of(tensor.clone().into_dispatch());
        self.tensors
            .push(TensorIr::uninit(id, like.shape(), like.dtype()));
        tensor
    }
}

map_alike!(Inputs<'_>, |self, tensor| { self.next(&tensor) });

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
        param.map(
            |tensor| match tensor.clone().try_into_primitive::<Capture>() {
                Ok(plain) => {
                    Tensor::from_primitive::<TrackedBackend>(TrackedBackend::from_inner(plain))
                }
                Err(_) => tensor,
            },
        )
    }
}

/// Removes autodiff from tensors.
pub(super) struct WithoutAutodiff;

impl ModuleMapper for WithoutAutodiff {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(without_graph)
    }
}

/// The tensor without its graph. For recorded tensors this is done by hand, because burn does not support it.
pub(crate) fn without_graph<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let tensor = tensor.into_dispatch();
    if let DispatchTensorKind::Autodiff(tracked) = &tensor.kind
        && let DispatchTensorKind::Capture(BackendTensor::Autodiff(recorded)) = &**tracked
    {
        return Tensor::from_primitive::<Capture>(recorded.clone().into_primitive());
    }
    Tensor::<D>::from_dispatch(tensor).without_autodiff()
}
