//! burn's interpreter on a model's device.

use burn::tensor::{DispatchTensor, TensorData};
use burn_dispatch::{BackendTensor, DispatchKindConversion, DispatchTensorKind};
use burn_ir::{BackendIr, HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;

use crate::record::RecordError;

/// Runs operations one by one on a device.
pub(in crate::record) trait Interpreter {
    /// Adds a tensor without autodiff.
    fn give(&mut self, id: TensorId, tensor: DispatchTensor);
    /// Adds a tensor by its numbers.
    fn give_data(&mut self, id: TensorId, data: TensorData);
    /// Runs an operation.
    fn run(&mut self, operation: OperationIr);
    /// Returns a tensor.
    fn hand_out(&mut self, tensor: &TensorIr) -> DispatchTensor;
}

/// An interpreter on the device where `tensor` is.
pub(in crate::record) fn interpreter(
    tensor: &DispatchTensor,
) -> Result<Box<dyn Interpreter>, RecordError> {
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
