//! Shapes of all activations of a model, and every check on them.
//!
//! [`ModelSpec::infer`] walks through the layers once, without a backend and without allocating a tensor. A model
//! that passes can be built: no layer of it can meet a shape that it does not take. The batch dimension is never
//! part of a shape here, and no check depends on it.
//!
//! One sample of an activation has one to three dimensions, so that tensors have two to four with the batch.

use super::{
    rules,
    shape_error::{LayerPath, ShapeError, ShapeProblem},
    spec::{LayerSpec, ModelSpec, SampleShape},
};

/// Most values that one sample of an activation, or the parameters of one layer, may have.
///
/// A petabyte of `f32`: larger sizes are mistakes, and sums of smaller ones are safe in `u64`.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// The shapes of a model's activations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Shape of one input sample.
    pub input: SampleShape,
    /// The layers, in the order of [`ModelSpec::layers`].
    pub layers: Vec<LayerShape>,
}

/// What goes into a layer and what comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerShape {
    /// Shape of one sample before the layer.
    pub input: SampleShape,
    /// Shape of one sample after the layer.
    pub output: SampleShape,
    /// Number of values that training changes. Running statistics are not among them.
    pub param_count: u64,
    /// The layers inside a residual; empty for any other layer.
    pub inner: Vec<LayerShape>,
}

impl ModelShape {
    /// Shape of one sample of the model's output.
    #[must_use]
    pub fn output(&self) -> &SampleShape {
        self.layers
            .last()
            .map_or(&self.input, |layer| &layer.output)
    }

    /// Number of values that training changes.
    #[must_use]
    pub fn param_count(&self) -> u64 {
        LayerShape::param_sum(&self.layers)
    }
}

impl LayerShape {
    /// Number of values that training changes in all of these layers.
    #[must_use]
    pub fn param_sum(layers: &[Self]) -> u64 {
        layers
            .iter()
            .fold(0, |sum, layer| sum.saturating_add(layer.param_count))
    }
}

impl ModelSpec {
    /// Finds the shape of every activation.
    ///
    /// # Errors
    ///
    /// The first layer that cannot take its input, or whose own settings make no sense.
    pub fn infer(&self) -> Result<ModelShape, ShapeError> {
        let of_the_model = |problem| ShapeError {
            path: LayerPath::default(),
            kind: "model",
            got: self.input.clone(),
            problem,
        };
        rules::check_sample(&self.input, "input").map_err(of_the_model)?;
        if self.layers.is_empty() {
            return Err(of_the_model(ShapeProblem::NoLayers));
        }
        let layers = infer_list(&self.layers, &self.input, &mut Vec::new())?;
        Ok(ModelShape {
            input: self.input.clone(),
            layers,
        })
    }
}

fn infer_list(
    layers: &[LayerSpec],
    input: &SampleShape,
    path: &mut Vec<usize>,
) -> Result<Vec<LayerShape>, ShapeError> {
    let mut next = input.clone();
    let mut shapes = Vec::with_capacity(layers.len());
    for (index, layer) in layers.iter().enumerate() {
        path.push(index);
        let shape = infer_layer(layer, next, path)?;
        path.pop();
        next = shape.output.clone();
        shapes.push(shape);
    }
    Ok(shapes)
}

fn infer_layer(
    layer: &LayerSpec,
    input: SampleShape,
    path: &mut Vec<usize>,
) -> Result<LayerShape, ShapeError> {
    let inner = match layer {
        LayerSpec::Residual { layers } => infer_list(layers, &input, path)?,
        _ => Vec::new(),
    };
    let output = rules::output(layer, &input, &inner);
    match output.and_then(|output| Ok((output, rules::param_count(layer, &input, &inner)?))) {
        Ok((output, param_count)) => Ok(LayerShape {
            input,
            output,
            param_count,
            inner,
        }),
        Err(problem) => Err(ShapeError {
            path: LayerPath(path.clone()),
            kind: layer.kind(),
            got: input,
            problem,
        }),
    }
}
