//! What an optimizer's step takes: measured with one parameter of each shape, at a learning rate of 0.

use std::collections::HashMap;

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsParams, ModuleOptimizer},
    tensor::{DType, Shape, Tensor},
};
use rekindle_plan::Bytes;

use crate::meter::Meter;

/// Bytes of an optimizer's step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OptimizerBytes {
    /// What its first step leaves: moments of all parameters that train.
    pub(super) state: Bytes,
    /// What it takes above parameters, gradients and state while it updates one parameter.
    pub(super) temp: Bytes,
}

/// Measures `optimizer` on the parameters of `model`, which keep their values.
pub(super) fn measured<M: Module>(
    model: &M,
    optimizer: &ModuleOptimizer,
    meter: &dyn Meter,
) -> OptimizerBytes {
    let mut each = Each {
        optimizer,
        meter,
        known: HashMap::new(),
        sum: OptimizerBytes::default(),
    };
    model.visit(&mut each);
    each.sum
}

struct Each<'a> {
    optimizer: &'a ModuleOptimizer,
    meter: &'a dyn Meter,
    known: HashMap<(Shape, DType), OptimizerBytes>,
    sum: OptimizerBytes,
}

impl ModuleVisitor for Each<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let key = (param.shape(), param.dtype());
        let one = match self.known.get(&key) {
            Some(one) => *one,
            None => {
                // The first step of a process makes tables that stay.
                self.step(param);
                let one = self.step(param);
                self.known.insert(key, one);
                one
            }
        };
        self.sum.state += one.state;
        self.sum.temp = self.sum.temp.max(one.temp);
    }
}

impl Each<'_> {
    fn step<const D: usize>(&self, param: &Param<Tensor<D>>) -> OptimizerBytes {
        let mut optimizer = self.optimizer.clone();
        let mut gradients = GradientsParams::new();
        let gradient = param.val().inner().zeros_like();
        gradients.register::<D>(param.id, gradient);
        self.meter.start_interval();
        let before = self.meter.read().in_use_bytes;
        let updated = optimizer.step(0.0, param.clone(), gradients);
        let peak = self.meter.read().peak_in_use_bytes;
        drop(updated);
        let after = self.meter.read().in_use_bytes;
        // The gradient is gone by now.
        let gradient = param.val().shape().num_elements() * param.val().dtype().size();
        OptimizerBytes {
            state: (after + Bytes(gradient as u64)) - before,
            temp: peak - before,
        }
    }
}
