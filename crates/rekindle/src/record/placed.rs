//! One parameter as a module of its own, at its path in the model: burn's optimizers select a parameter's group by its
//! path.

use burn::{
    module::{Devices, Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};

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
