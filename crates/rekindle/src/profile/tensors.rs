//! Bytes and values of the tensors of modules and activations.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Bool, Int, Tensor},
};

use crate::tensor_tree::{TensorTree, TensorVisitor};

/// The float tensors of a module.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) bytes: u64,
    /// Bytes of the values that require a gradient.
    pub(super) trainable_bytes: u64,
    pub(super) tensors: u64,
}

impl Parameters {
    pub(super) fn of<M: Module>(module: &M) -> Self {
        let mut parameters = Self::default();
        module.visit(&mut parameters);
        parameters
    }
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let count = tensor.shape().num_elements() as u64;
        let bytes = count * tensor.dtype().size() as u64;
        self.bytes += bytes;
        self.tensors += 1;
        if tensor.is_require_grad() {
            self.trainable_bytes += bytes;
        }
    }
}

/// Bytes of all tensors of an activation.
pub(super) fn value_bytes<A: TensorTree>(activation: &A) -> u64 {
    struct Count(u64);
    impl TensorVisitor for Count {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
        fn int<const D: usize>(&mut self, tensor: &Tensor<D, Int>) {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
        fn bool<const D: usize>(&mut self, tensor: &Tensor<D, Bool>) {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
    }
    let mut count = Count(0);
    activation.visit(&mut count);
    count.0
}

/// A gradient of ones for every parameter that requires one.
pub(super) fn unit_gradients<M: Module>(module: &M) -> GradientsParams {
    struct Fill(GradientsParams);
    impl ModuleVisitor for Fill {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            if tensor.is_require_grad() {
                let ones = tensor.inner().ones_like();
                self.0.register::<D>(param.id, ones);
            }
        }
    }
    let mut fill = Fill(GradientsParams::new());
    module.visit(&mut fill);
    fill.0
}
