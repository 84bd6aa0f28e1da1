//! The tensors that exist before a step's first operation: those of the model and the batch, and constants.

use burn::{
    module::Module,
    tensor::{DType, DispatchTensor, Shape},
};
use burn_ir::TensorId;

use super::{
    RecordError,
    bridge::{self, Interpreter},
    places,
    recording::Recording,
};
use crate::tensor_tree::{TensorTree, visit_alike};

/// An interpreter that holds the tensors that exist before the first operation.
pub(super) fn started(
    recording: &Recording,
    given: Vec<(usize, DispatchTensor)>,
) -> Result<Box<dyn Interpreter>, RecordError> {
    let (_, any) = given.first().ok_or(RecordError::Backend)?;
    let mut interpreter = bridge::interpreter(any)?;
    for (tensor, value) in given {
        interpreter.give(TensorId::new(tensor as u64), value);
    }
    for (tensor, data) in &recording.constants {
        interpreter.give_data(TensorId::new(*tensor as u64), data.clone());
    }
    Ok(interpreter)
}

/// The tensors of a model with the recorded places, and of a batch, by their tensor numbers in a recording.
pub(super) fn given<M: Module, I: TensorTree>(
    recording: &Recording,
    model: &M,
    batch: &I,
) -> Vec<(usize, DispatchTensor)> {
    // Merges pending updates of running statistics.
    let of_model = places::tensors(&model.valid());
    let parameters = recording.parameters.iter();
    let parameters = parameters.map(|one| (one.tensor, of_model[one.place].clone()));
    let mut of_batch = Tensors(Vec::new());
    batch.visit(&mut of_batch);
    let inputs = recording.inputs.iter().copied().zip(of_batch.0);
    parameters.chain(inputs).collect()
}

/// A batch's tensors without autodiff.
struct Tensors(Vec<DispatchTensor>);

visit_alike!(Tensors, |self, tensor| {
    let tensor = tensor.clone().without_autodiff();
    self.0.push(tensor.into_dispatch());
});

/// Shapes and types of a batch's tensors.
pub(super) fn shapes<I: TensorTree>(batch: &I) -> Vec<(Shape, DType)> {
    struct Shapes(Vec<(Shape, DType)>);
    visit_alike!(Shapes, |self, tensor| {
        self.0.push((tensor.shape(), tensor.dtype()));
    });
    let mut shapes = Shapes(Vec::new());
    batch.visit(&mut shapes);
    shapes.0
}
