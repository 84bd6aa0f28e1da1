//! The costs of layers as they nest: a residual's own, and those of the layers inside it.

use super::{
    cost::{Counter, ElementBytes, LayerCost},
    shape::{LayerShape, ModelShape},
    spec::{LayerSpec, ModelSpec},
};

/// A layer, what it costs by itself, and the layers inside it.
#[derive(Debug, Clone)]
pub struct LayerNode<'a> {
    /// What the user wrote.
    pub spec: &'a LayerSpec,
    /// What goes in and comes out.
    pub shape: &'a LayerShape,
    /// What it costs as if it were a stage by itself. A residual may keep less than its layers would one by one.
    pub cost: LayerCost,
    /// The layers of a residual.
    pub inner: Vec<LayerNode<'a>>,
}

/// Counts every layer of a model. `shape` is what [`ModelSpec::infer`] gives for it.
#[must_use]
pub fn tree<'a>(
    model: &'a ModelSpec,
    shape: &'a ModelShape,
    batch: usize,
    bytes: ElementBytes,
) -> Vec<LayerNode<'a>> {
    let counter = Counter {
        batch: batch as u64,
        bytes,
    };
    nodes(counter, &model.layers, &shape.layers, false)
}

/// `tracked` tells whether the first layer's input wants a gradient.
fn nodes<'a>(
    counter: Counter,
    specs: &'a [LayerSpec],
    shapes: &'a [LayerShape],
    mut tracked: bool,
) -> Vec<LayerNode<'a>> {
    let node = |(spec, shape): (&'a LayerSpec, &'a LayerShape)| {
        let inner = match spec {
            LayerSpec::Residual { layers } => nodes(counter, layers, &shape.inner, tracked),
            _ => Vec::new(),
        };
        let cost = counter.run_cost(&[(spec, shape)], tracked);
        tracked |= shape.param_count > 0;
        LayerNode {
            spec,
            shape,
            cost,
            inner,
        }
    };
    specs.iter().zip(shapes).map(node).collect()
}
