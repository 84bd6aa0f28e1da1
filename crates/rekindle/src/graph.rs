//! Pieces of autodiff graph: where one starts, how a backward through it starts, and where its gradients go.

use burn::{
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Tensor, TensorMetadata, TensorPrimitive, backend::AutodiffBackend, ops::FloatTensor},
};

use burn_autodiff::NodeId;

use crate::{
    activation::{Activation, ActivationMapper, ActivationVisitor},
    backend::CheckpointBackend,
};

/// A number that grows by one with every graph node that the process makes, and with every call.
pub(crate) fn node_counter() -> u64 {
    NodeId::new().value
}

/// A graph of one node. burn makes a node for every operation, recorded or not, and sees to those whose results are gone
/// only when some backward is over; one through this will do.
pub(crate) fn lone_leaf<B: AutodiffBackend>(device: &B::Device) -> FloatTensor<B> {
    root_of(Tensor::<B, 1>::zeros([1], device).require_grad())
}

/// The same values without a graph.
pub(crate) fn detached<B: AutodiffBackend, A: Activation<B>>(activation: A) -> A {
    struct Detach;
    impl<B: AutodiffBackend> ActivationMapper<B> for Detach {
        fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D> {
            Tensor::from_inner(tensor.inner())
        }
    }
    activation.map(&mut Detach)
}

/// The same values as the start of a graph.
pub(crate) fn leaf<B: AutodiffBackend, A: Activation<B>>(activation: A) -> A {
    struct Leaf;
    impl<B: AutodiffBackend> ActivationMapper<B> for Leaf {
        fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D> {
            Tensor::from_inner(tensor.inner()).require_grad()
        }
    }
    activation.map(&mut Leaf)
}

/// The gradient of an activation: one entry for each of its float tensors, in visiting order, `None` where nothing
/// that was computed from the tensor reached the loss.
pub(crate) struct Upstream<B: AutodiffBackend>(
    pub(crate) Vec<Option<FloatTensor<B::InnerBackend>>>,
);

impl<B: AutodiffBackend> Upstream<B> {
    /// Takes the gradient of a leaf activation out of what a sweep gave.
    pub(crate) fn take<A: Activation<B>>(leaf: &A, grads: &mut B::Gradients) -> Self {
        struct Take<'a, B: AutodiffBackend> {
            grads: &'a mut B::Gradients,
            taken: Vec<Option<FloatTensor<B::InnerBackend>>>,
        }
        impl<B: AutodiffBackend> ActivationVisitor<B> for Take<'_, B> {
            fn float<const D: usize>(&mut self, tensor: &Tensor<B, D>) {
                let grad = tensor.grad_remove(self.grads);
                self.taken
                    .push(grad.map(|grad| grad.into_primitive().tensor()));
            }
        }
        let mut take = Take {
            grads,
            taken: Vec::new(),
        };
        leaf.visit(&mut take);
        Self(take.taken)
    }

    /// A gradient of ones, of an activation's shape.
    pub(crate) fn ones<A: Activation<B>>(activation: &A) -> Self {
        struct Ones<B: AutodiffBackend>(Vec<Option<FloatTensor<B::InnerBackend>>>);
        impl<B: AutodiffBackend> ActivationVisitor<B> for Ones<B> {
            fn float<const D: usize>(&mut self, tensor: &Tensor<B, D>) {
                let ones = tensor.clone().inner().ones_like();
                self.0.push(Some(ones.into_primitive().tensor()));
            }
        }
        let mut ones = Ones(Vec::new());
        activation.visit(&mut ones);
        Self(ones.0)
    }

    /// Bytes of the values.
    pub(crate) fn bytes(&self) -> u64 {
        self.0
            .iter()
            .flatten()
            .map(|gradient| (gradient.shape().num_elements() * gradient.dtype().size()) as u64)
            .sum()
    }
}

impl<B: CheckpointBackend> Upstream<B> {
    /// A scalar whose backward gives `output` this gradient; `None` where no gradient can flow.
    pub(crate) fn seed<A: Activation<B>>(self, output: A) -> Option<FloatTensor<B>> {
        struct Seed<B: CheckpointBackend> {
            upstream: std::vec::IntoIter<Option<FloatTensor<B::InnerBackend>>>,
            root: Option<FloatTensor<B>>,
        }
        impl<B: CheckpointBackend> ActivationMapper<B> for Seed<B> {
            fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D> {
                let primitive = tensor.clone().into_primitive().tensor();
                if let Some(Some(upstream)) = self.upstream.next()
                    && B::is_tracked(&primitive)
                {
                    let seeded = B::seed_backward(primitive, upstream);
                    self.root = Some(match self.root.take() {
                        None => seeded,
                        Some(root) => B::float_add(root, seeded),
                    });
                }
                tensor
            }
        }
        let mut seed = Seed {
            upstream: self.0.into_iter(),
            root: None,
        };
        // The output's own buffer is free to go from here on, unless the graph kept it.
        drop(output.map(&mut seed));
        seed.root
    }
}

/// Runs one backward from `root`.
pub(crate) fn sweep<B: AutodiffBackend>(root: FloatTensor<B>) -> B::Gradients {
    B::backward(root)
}

/// The primitive of a scalar loss.
pub(crate) fn root_of<B: AutodiffBackend>(loss: Tensor<B, 1>) -> FloatTensor<B> {
    match loss.into_primitive() {
        TensorPrimitive::Float(primitive) => primitive,
        TensorPrimitive::QFloat(quantised) => {
            B::dequantize(quantised, burn::tensor::FloatDType::F32)
        }
    }
}

/// Moves the gradients of a module's parameters out of what a sweep gave, adding to those already collected: a
/// parameter that several pieces use gets the sum.
pub(crate) fn collect<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut B::Gradients,
    collected: &mut GradientsParams,
) {
    struct Collect<'a, B: AutodiffBackend> {
        grads: &'a mut B::Gradients,
        collected: &'a mut GradientsParams,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let Some(grad) = param.val().grad_remove(self.grads) else {
                return;
            };
            let sum = match self.collected.remove::<B::InnerBackend, D>(param.id) {
                None => grad,
                Some(earlier) => earlier + grad,
            };
            self.collected.register::<B::InnerBackend, D>(param.id, sum);
        }
    }
    Module::visit(module, &mut Collect { grads, collected });
}
