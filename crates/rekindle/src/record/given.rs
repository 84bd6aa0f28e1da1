//! The tensors that exist before a step's first operation: those of the model and the batch, and constants.

use std::collections::HashMap;

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::{Bool, DType, DispatchTensor, Int, Shape, Tensor},
};
use burn_ir::TensorId;

use super::{
    RecordError,
    bridge::{self, Interpreter},
    recording::Recording,
};
use crate::activation::{Activation, visit_alike};

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

/// The tensors of a model and a batch, by their tensor numbers in a recording.
pub(super) fn given<M: Module, I: Activation>(
    recording: &Recording,
    model: &M,
    batch: &I,
) -> Result<Vec<(usize, DispatchTensor)>, RecordError> {
    let wanted = recording.parameters.iter().map(|one| (one.id, one.tensor));
    let mut parameters = Parameters {
        wanted: wanted.collect(),
        found: Vec::with_capacity(recording.parameters.len()),
    };
    // Merges pending updates of running statistics.
    model.valid().visit(&mut parameters);
    if let Some((_, missing)) = parameters.wanted.iter().next() {
        let parameter = recording
            .parameters
            .iter()
            .find(|one| one.tensor == *missing);
        return Err(RecordError::Parameter {
            path: parameter.map(|one| one.path.clone()).unwrap_or_default(),
        });
    }
    let mut tensors = Tensors(Vec::new());
    batch.visit(&mut tensors);
    let mut given = parameters.found;
    given.extend(recording.inputs.iter().copied().zip(tensors.0));
    Ok(given)
}

/// Finds a model's tensors.
struct Parameters {
    wanted: HashMap<ParamId, usize>,
    found: Vec<(usize, DispatchTensor)>,
}

impl Parameters {
    fn found(&mut self, id: ParamId, tensor: impl FnOnce() -> DispatchTensor) {
        if let Some(number) = self.wanted.remove(&id) {
            self.found.push((number, tensor()));
        }
    }
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found(param.id, || param.val().into_dispatch());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.found(param.id, || param.val().into_dispatch());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.found(param.id, || param.val().into_dispatch());
    }
}

/// A batch's tensors without autodiff.
struct Tensors(Vec<DispatchTensor>);

visit_alike!(Tensors, |self, tensor| {
    let tensor = tensor.clone().without_autodiff();
    self.0.push(tensor.into_dispatch());
});

/// Shapes and types of a batch's tensors.
pub(super) fn shapes<I: Activation>(batch: &I) -> Vec<(Shape, DType)> {
    struct Shapes(Vec<(Shape, DType)>);
    visit_alike!(Shapes, |self, tensor| {
        self.0.push((tensor.shape(), tensor.dtype()));
    });
    let mut shapes = Shapes(Vec::new());
    batch.visit(&mut shapes);
    shapes.0
}
