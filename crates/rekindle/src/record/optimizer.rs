//! What an optimizer's step takes: measured with one parameter of each shape, at a learning rate of 0.

use std::{collections::HashMap, time::Instant};

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsParams, ModuleOptimizer},
    tensor::{DType, Shape, Tensor},
};
use rekindle_plan::{Bytes, OptimizerCost, Seconds};

use crate::meter::Meter;

/// Updates modules from gradients: what [`with_optimizer`](super::Recorded::with_optimizer) measures.
pub trait Optimizer: 'static {
    /// An optimizer of the same settings, to be tried on a parameter and dropped.
    #[must_use]
    fn for_trial(&self) -> Self;

    /// Updates the parameters of `module` that have a gradient.
    #[must_use]
    fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M;
}

impl Optimizer for ModuleOptimizer {
    fn for_trial(&self) -> Self {
        self.clone()
    }

    fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M {
        Self::step(self, rate, module, gradients)
    }
}

/// Measures `optimizer` on the parameters of `model`, which keep their values. The temporary bytes are those above
/// parameters, gradients and state, one parameter being updated after the other.
pub(super) fn measured<M: Module, O: Optimizer>(
    model: &M,
    optimizer: &O,
    meter: &dyn Meter,
) -> OptimizerCost {
    let mut each = Each {
        optimizer,
        meter,
        known: HashMap::new(),
        sum: OptimizerCost::default(),
    };
    model.visit(&mut each);
    each.sum
}

struct Each<'a, O> {
    optimizer: &'a O,
    meter: &'a dyn Meter,
    known: HashMap<(Shape, DType), OptimizerCost>,
    sum: OptimizerCost,
}

impl<O: Optimizer> ModuleVisitor for Each<'_, O> {
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
        self.sum.step_s += one.step_s;
        self.sum.state_bytes += one.state_bytes;
        self.sum.temp_bytes = self.sum.temp_bytes.max(one.temp_bytes);
    }
}

impl<O: Optimizer> Each<'_, O> {
    fn step<const D: usize>(&self, param: &Param<Tensor<D>>) -> OptimizerCost {
        let mut optimizer = self.optimizer.for_trial();
        let mut gradients = GradientsParams::new();
        let gradient = param.val().inner().zeros_like();
        gradients.register::<D>(param.id, gradient);
        self.meter.start_interval();
        let before = self.meter.read().in_use_bytes;
        let started = Instant::now();
        let updated = optimizer.step(0.0, param.clone(), gradients);
        // Waits for queued work.
        let peak = self.meter.read().peak_in_use_bytes;
        let seconds = started.elapsed().as_secs_f64();
        drop(updated);
        let after = self.meter.read().in_use_bytes;
        // The gradient is gone by now.
        let gradient = param.val().shape().num_elements() * param.val().dtype().size();
        OptimizerCost {
            step_s: Seconds(seconds),
            state_bytes: (after + Bytes(gradient as u64)) - before,
            temp_bytes: peak - before,
        }
    }
}
