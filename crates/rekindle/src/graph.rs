//! Pieces of the autodiff graph: where one starts, how its backward pass starts, and where its gradients go.

use burn::{
    backend::{DispatchTensor, TensorMetadata},
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Bool, Device, Gradients, Int, Tensor, kind::Autodiff},
};

use crate::{
    graph_ops::seed_backward,
    tensor_tree::{TensorMapper, TensorTree, TensorVisitor},
};

/// Frees the nodes of burn's graph whose results no longer exist. burn creates a node for every operation on a device
/// with autodiff, recorded or not, and looks for dead nodes only at the end of a backward pass. Call this after forward
/// passes without a backward pass.
pub fn free_dead_nodes(device: &Device) {
    drop(lone_leaf(device).backward());
}

/// A graph with one node, whose backward pass costs nothing.
pub(crate) fn lone_leaf(device: &Device) -> Tensor<1> {
    Tensor::zeros([1], &device.clone().autodiff()).require_grad()
}

/// Frees what a step that ended early has left in burn's graph: nodes, and all that they keep for a backward pass.
/// These nodes are connected to the model's parameters, and burn finds dead nodes only where a backward pass has run,
/// so this runs one through the parameters. Takes as much memory as the largest gradient.
pub(crate) fn clear<M: Module>(model: &M, device: &Device) {
    struct Pass;
    impl ModuleVisitor for Pass {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            if tensor.is_require_grad() && tensor.shape().num_elements() > 0 {
                let first = tensor.slice(std::array::from_fn::<_, D, _>(|_| 0..1));
                drop(first.sum().backward());
            }
        }
    }
    model.visit(&mut Pass);
    free_dead_nodes(device);
}

/// The same values without a graph, still on the device with autodiff.
fn detached_tensor<const D: usize, K: Autodiff>(tensor: Tensor<D, K>) -> Tensor<D, K> {
    let strategy = tensor.gradient_checkpointing_strategy();
    let detached = tensor.inner().autodiff();
    match strategy {
        Some(strategy) => detached.with_gradient_checkpointing_strategy(strategy),
        None => detached,
    }
}

/// The same values without a graph, still on the device with autodiff.
pub(crate) fn detached<A: TensorTree>(activation: A) -> A {
    struct Detach;
    impl TensorMapper for Detach {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            detached_tensor(tensor)
        }

        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            detached_tensor(tensor)
        }

        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            detached_tensor(tensor)
        }
    }
    activation.map(&mut Detach)
}

/// The same values as the start of a graph.
pub(crate) fn leaf<A: TensorTree>(activation: A) -> A {
    struct Leaf;
    impl TensorMapper for Leaf {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            detached_tensor(tensor).require_grad()
        }
    }
    activation.map(&mut Leaf)
}

/// The gradient of an activation: one entry for each of its float tensors, in visiting order, `None` where the loss
/// does not depend on the tensor.
pub(crate) struct Upstream(pub(crate) Vec<Option<DispatchTensor>>);

impl Upstream {
    /// Removes the gradient of a leaf activation from the result of a backward pass.
    pub(crate) fn take<A: TensorTree>(leaf: &A, grads: &mut Gradients) -> Self {
        struct Take<'a> {
            grads: &'a mut Gradients,
            taken: Vec<Option<DispatchTensor>>,
        }
        impl TensorVisitor for Take<'_> {
            fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
                let grad = tensor.grad_remove(self.grads);
                self.taken.push(grad.map(Tensor::into_dispatch));
            }
        }
        let mut take = Take {
            grads,
            taken: Vec::new(),
        };
        leaf.visit(&mut take);
        Self(take.taken)
    }

    /// A gradient of ones with the activation's shape.
    pub(crate) fn ones<A: TensorTree>(activation: &A) -> Self {
        struct Ones(Vec<Option<DispatchTensor>>);
        impl TensorVisitor for Ones {
            fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
                let ones = tensor.clone().inner().ones_like();
                self.0.push(Some(ones.into_dispatch()));
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

    /// A scalar whose backward pass gives `output` this gradient; `None` if no gradient can flow.
    pub(crate) fn seed<A: TensorTree>(self, output: A) -> Option<Tensor<1>> {
        struct Seed {
            upstream: std::vec::IntoIter<Option<DispatchTensor>>,
            root: Option<Tensor<1>>,
        }
        impl TensorMapper for Seed {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                if let Some(Some(upstream)) = self.upstream.next()
                    && tensor.is_tracked()
                {
                    let seeded = seed_backward(tensor.clone().into_dispatch(), upstream);
                    self.root = Some(match self.root.take() {
                        None => seeded,
                        Some(root) => root + seeded,
                    });
                }
                tensor
            }
        }
        let mut seed = Seed {
            upstream: self.0.into_iter(),
            root: None,
        };
        // From here on the output's own buffer can be freed, unless the graph kept it.
        drop(output.map(&mut seed));
        seed.root
    }
}

/// Moves the gradients of a module's parameters out of the result of a backward pass and adds them to those already
/// collected: a parameter that several pieces use gets the sum.
pub(crate) fn collect<M: Module>(
    module: &M,
    grads: &mut Gradients,
    collected: &mut GradientsParams,
) {
    struct Collect<'a> {
        grads: &'a mut Gradients,
        collected: &'a mut GradientsParams,
    }
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(grad) = param.val().grad_remove(self.grads) else {
                return;
            };
            let sum = match self.collected.remove::<D>(param.id) {
                None => grad,
                Some(earlier) => earlier + grad,
            };
            self.collected.register::<D>(param.id, sum);
        }
    }
    Module::visit(module, &mut Collect { grads, collected });
}
