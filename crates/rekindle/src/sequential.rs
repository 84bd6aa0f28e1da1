//! A chain of layers as one burn module.

use burn::{
    module::{
        Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    },
    tensor::Device,
};

use crate::{layer::Layer, record::marking, tensor_tree::TensorTree};

/// Layers that run one after another: the stages of the chain.
///
/// As a module it is the same as a `Vec` of its layers: replacing a field `layers: Vec<L>` by `layers: Sequential<L>`
/// changes no parameter's path or id in a record.
#[derive(Debug, Clone)]
pub struct Sequential<L> {
    /// The layers in order.
    pub layers: Vec<L>,
}

impl<L> Sequential<L> {
    /// A chain of these layers.
    #[must_use]
    pub fn new(layers: Vec<L>) -> Self {
        Self { layers }
    }

    /// Runs all layers as ordinary burn code, for inference and for the plain run that checkpointing is compared with.
    pub fn forward<A>(&self, input: A) -> A
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        marking(|mark| {
            let output = self.layers.iter().fold(input, |activation, layer| {
                mark();
                layer.forward(activation)
            });
            mark();
            output
        })
    }
}

impl<L> From<Vec<L>> for Sequential<L> {
    fn from(layers: Vec<L>) -> Self {
        Self::new(layers)
    }
}

impl<L: Module> Module for Sequential<L> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.layers.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self::new(self.layers.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        Self::new(self.layers.to_device(device))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.layers.visit(visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        Self::new(self.layers.map(mapper))
    }

    fn train(self) -> Self {
        Self::new(self.layers.train())
    }

    fn valid(&self) -> Self {
        Self::new(self.layers.valid())
    }

    fn materialize(self) -> Self {
        Self::new(self.layers.materialize())
    }
}

impl<L: ModuleDisplay> ModuleDisplayDefault for Sequential<L> {
    fn content(&self, content: Content) -> Option<Content> {
        self.layers.content(content)
    }
}

impl<L: ModuleDisplay> ModuleDisplay for Sequential<L> {}
