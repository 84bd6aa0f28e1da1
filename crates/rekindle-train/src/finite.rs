//! Finds loss, gradients or state that are not finite by one number that depends on all of them, and then finds which
//! one it is.
//!
//! The sum of a tensor with a NaN or an infinity is not finite, so the sum of all sums is read once per step. Only if
//! that is not finite are the tensors read one by one: the sum of finite numbers may also overflow.
//!
//! Cost: one pass over the gradients and one read per step; nothing if gradients are clipped by their global norm,
//! which is such a number itself. Memory: a few numbers and, for half types, a copy of one tensor in `f32`; if a sum is
//! not finite, a copy of one tensor on the host.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{FloatDType, Tensor, kind::Basic},
};

use super::run_error::RunError;
use rekindle::record::RecordError;

/// The path of the first tensor of a module that is not finite: of these gradients, or else of its values.
pub(super) fn first(
    module: &impl Module,
    gradients: Option<&GradientsParams>,
) -> Result<Option<String>, RunError> {
    let mut visit = Visit {
        gradients,
        one_by_one: false,
        path: Vec::new(),
        sum: None,
        found: Ok(None),
    };
    module.visit(&mut visit);
    let Some(sum) = visit.sum.take() else {
        return Ok(None);
    };
    if read(sum)?.is_finite() {
        return Ok(None);
    }
    visit.one_by_one = true;
    module.visit(&mut visit);
    visit.found
}

/// A tensor's number.
pub(super) fn read<K: Basic>(tensor: Tensor<1, K>) -> Result<f64, RunError> {
    let data = tensor.try_into_data();
    let data = data.map_err(|error| RecordError::Device(error.to_string()))?;
    Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
}

/// Visits the gradients of a module's parameters, or its values.
struct Visit<'a> {
    gradients: Option<&'a GradientsParams>,
    /// Whether tensors are read one by one until one is found, instead of being added up.
    one_by_one: bool,
    path: Vec<String>,
    sum: Option<Tensor<1>>,
    found: Result<Option<String>, RunError>,
}

impl ModuleVisitor for Visit<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        let Some(tensor) = tensor else {
            return;
        };
        if !self.one_by_one {
            // A sum of finite halves may be too large for them.
            let one = tensor.cast(FloatDType::F32).sum();
            self.sum = Some(match self.sum.take() {
                Some(sum) => sum + one,
                None => one,
            });
        } else if let Ok(None) = self.found {
            let finite = has_only_finite(tensor);
            self.found = finite.map(|finite| (!finite).then(|| self.path.join(".")));
        }
    }
}

fn has_only_finite<const D: usize>(tensor: Tensor<D>) -> Result<bool, RunError> {
    if read(tensor.clone().cast(FloatDType::F32).sum())?.is_finite() {
        return Ok(true);
    }
    let data = tensor.try_into_data();
    let data = data.map_err(|error| RecordError::Device(error.to_string()))?;
    Ok(data.iter::<f64>().all(f64::is_finite))
}
