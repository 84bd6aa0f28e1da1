//! The shapes of a model's activations, and every check on them.
//!
//! [`ModelSpec::infer`] goes through the layers once, without a backend and without allocating a tensor. A model that
//! passes can be built: no layer can receive a shape that it does not accept. No check depends on the batch.

use super::{
    rules,
    shape::{LayerShape, ModelShape},
    shape_error::{LayerPath, ShapeError},
    spec::{LayerSpec, ModelSpec, SampleShape},
};

impl ModelSpec {
    /// Finds the shape of every activation.
    ///
    /// # Errors
    ///
    /// The first layer that cannot take its input, or whose own settings are invalid.
    pub fn infer(&self) -> Result<ModelShape, ShapeError> {
        let of_the_model = |problem| ShapeError {
            path: LayerPath::default(),
            kind: "model",
            got: self.input.clone(),
            problem,
        };
        rules::check_sample(&self.input, "input").map_err(of_the_model)?;
        if self.layers.is_empty() {
            return Err(of_the_model(rules::NO_LAYERS.into()));
        }
        let layers = infer_list(&self.layers, &self.input, &mut Vec::new())?;
        let embeddings: Vec<[usize; 2]> = self.layers.iter().filter_map(embedding).collect();
        check_shared(&self.layers, &layers, &embeddings, &mut Vec::new())?;
        Ok(ModelShape {
            input: self.input.clone(),
            layers,
        })
    }
}

/// Number of token ids and length of the vectors of an embedding.
fn embedding(layer: &LayerSpec) -> Option<[usize; 2]> {
    match layer {
        LayerSpec::Embedding { vocab, dim } => Some([*vocab, *dim]),
        _ => None,
    }
}

/// Checks that the model has exactly one embedding whose weight is shared, and that its shape fits.
fn check_shared(
    layers: &[LayerSpec],
    shapes: &[LayerShape],
    embeddings: &[[usize; 2]],
    path: &mut Vec<usize>,
) -> Result<(), ShapeError> {
    for (index, (layer, shape)) in layers.iter().zip(shapes).enumerate() {
        path.push(index);
        if let LayerSpec::Residual(layers) = layer {
            check_shared(layers, &shape.inner, embeddings, path)?;
        }
        if let LayerSpec::Unembedding { vocab } = *layer {
            let dim = shape.input.dims.last().copied().unwrap_or(0);
            if embeddings != [[vocab, dim]] {
                return Err(ShapeError {
                    path: LayerPath(path.clone()),
                    kind: layer.kind(),
                    got: shape.input.clone(),
                    problem: format!(
                        "it shares the weight of the model's one embedding, which must be [{vocab}, {dim}]; the model has \
                         {embeddings:?}"
                    ),
                });
            }
        }
        path.pop();
    }
    Ok(())
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
        LayerSpec::Residual(layers) => infer_list(layers, &input, path)?,
        _ => Vec::new(),
    };
    match rules::output_and_params(layer, &input, &inner) {
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
