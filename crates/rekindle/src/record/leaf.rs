//! One parameter apart from its model: as a leaf of burn's graph, and at its path in the model, by which burn's optimizers
//! select a parameter's group. And what burn's graph keeps of operations: [`free_dead_nodes`].

use burn::{
    module::{Devices, Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, DispatchTensor, GradientCheckpointingStrategy, Tensor},
};

use super::rank::of_rank;

/// A parameter's autodiff properties: its update is computed without autodiff, and the result becomes a leaf again.
pub struct Leaf {
    requires_grad: bool,
    /// Must be kept: burn panics in the next forward pass if a parameter and its layer's input have different
    /// strategies.
    strategy: Option<GradientCheckpointingStrategy>,
}

impl Leaf {
    /// The properties of a parameter's value.
    #[must_use]
    pub fn of<const D: usize>(parameter: &Tensor<D>) -> Self {
        Self {
            requires_grad: parameter.is_require_grad(),
            strategy: parameter.gradient_checkpointing_strategy(),
        }
    }

    /// Makes the updated value, which has no graph, a leaf of the same kind.
    #[must_use]
    pub fn again<const D: usize>(&self, updated: Tensor<D>) -> Tensor<D> {
        let Some(strategy) = self.strategy else {
            return updated;
        };
        updated
            .autodiff()
            .with_gradient_checkpointing_strategy(strategy)
            .set_require_grad(self.requires_grad)
    }
}

/// `new`, which has no graph, with the autodiff properties of `old`.
pub(super) fn again(old: &DispatchTensor, new: DispatchTensor) -> DispatchTensor {
    of_rank!(old, D => {
        let leaf = Leaf::of(&Tensor::<D>::from_dispatch(old.clone()));
        leaf.again(Tensor::<D>::from_dispatch(new)).into_dispatch()
    })
}

/// Frees the nodes of burn's graph whose results no longer exist. burn creates a node for every operation on a device
/// with autodiff, recorded or not, and looks for dead nodes only at the end of a backward pass. Call this after forward
/// passes without a backward pass.
pub fn free_dead_nodes(device: &Device) {
    let leaf = Tensor::<1>::zeros([1], &device.clone().autodiff()).require_grad();
    drop(leaf.backward());
}

/// A parameter at its path in the model.
#[derive(Debug, Clone)]
pub(super) struct Placed<'a, const D: usize> {
    /// With dots, like `layers.1.weight`.
    pub(super) path: &'a str,
    pub(super) param: Param<Tensor<D>>,
}

impl<const D: usize> Placed<'_, D> {
    fn with(self, change: impl FnOnce(Param<Tensor<D>>) -> Param<Tensor<D>>) -> Self {
        Self {
            param: change(self.param),
            ..self
        }
    }
}

impl<const D: usize> Module for Placed<'_, D> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.param.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with(|param| param.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with(|param| param.to_device(device))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.enter_module(self.path, "");
        self.param.visit(visitor);
        visitor.exit_module(self.path, "");
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let path = self.path;
        mapper.enter_module(path, "");
        let mapped = self.with(|param| Module::map(param, mapper));
        mapper.exit_module(path, "");
        mapped
    }

    fn train(self) -> Self {
        self.with(Module::train)
    }

    fn valid(&self) -> Self {
        self.clone().with(|param| param.valid())
    }

    fn materialize(self) -> Self {
        self.with(Module::materialize)
    }
}
