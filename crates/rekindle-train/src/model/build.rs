//! From a description to burn modules.
//!
//! All parameters are initialised here, layer by layer; burn itself would initialise them at their first use. So calling
//! [`Device::seed`] before [`Blueprint::build`] makes a model reproducible. Linear layers before ReLU or GELU start as
//! mirrored pairs of an orthogonal map, so that stacks of any depth train; the modules `init` and `mirror` explain this.

use burn::tensor::Device;

use super::{
    kinds::{Make, Placed, place},
    maker::Maker,
    rules::{NO_LAYERS, check_sample},
    shape::{ModelShape, ShapeError},
    spec::{ElementKind, LayerSpec, ModelSpec, SampleShape},
    stage::Stage,
    stages::stages,
};
use crate::device::staging::Staging;
use rekindle::dtype::Dtype;

/// A model whose shapes fit from layer to layer, ready to be built. No check depends on the batch.
pub struct Blueprint<'a> {
    /// The shapes of its activations, and its stages.
    pub shape: ModelShape,
    layers: Vec<Make<'a>>,
}

impl ModelSpec {
    /// Finds the shape of every activation, without a device.
    ///
    /// # Errors
    ///
    /// The first layer that cannot take its input, or whose own settings are invalid.
    pub fn infer(&self) -> Result<ModelShape, ShapeError> {
        Ok(self.blueprint()?.shape)
    }

    /// The names of its stages, whether or not shapes fit.
    #[must_use]
    pub fn stage_names(&self) -> Vec<String> {
        let stages = stages(&self.layers).into_iter();
        stages.map(|stage| stage.name).collect()
    }

    /// Like [`infer`](Self::infer), with what builds the model.
    ///
    /// # Errors
    ///
    /// See [`infer`](Self::infer).
    pub fn blueprint(&self) -> Result<Blueprint<'_>, ShapeError> {
        let of_the_model = |problem| ShapeError {
            path: Vec::new(),
            kind: "model",
            got: self.input.clone(),
            problem,
        };
        check_sample(&self.input, "input").map_err(of_the_model)?;
        if self.layers.is_empty() {
            return Err(of_the_model(NO_LAYERS.into()));
        }
        let placed = place_all(&self.layers, &self.input, &self.layers, &mut Vec::new())?;
        let (shapes, layers) = placed
            .into_iter()
            .map(|layer| (layer.shape, layer.make))
            .unzip();
        Ok(Blueprint {
            shape: ModelShape {
                input: self.input.clone(),
                layers: shapes,
                stages: stages(&self.layers),
            },
            layers,
        })
    }
}

fn place_all<'a>(
    list: &'a [LayerSpec],
    input: &SampleShape,
    model: &[LayerSpec],
    path: &mut Vec<usize>,
) -> Result<Vec<Placed<'a>>, ShapeError> {
    let mut next = input.clone();
    let mut all = Vec::with_capacity(list.len());
    for (index, layer) in list.iter().enumerate() {
        path.push(index);
        let inner = match layer {
            LayerSpec::Residual(layers) if next.kind == ElementKind::Float => {
                place_all(layers, &next, model, path)?
            }
            _ => Vec::new(),
        };
        let placed = place(list, index, &next, inner, model);
        let placed = placed.map_err(|problem| ShapeError {
            path: path.clone(),
            kind: layer.kind(),
            got: next.clone(),
            problem,
        })?;
        path.pop();
        next.clone_from(&placed.shape.output);
        all.push(placed);
    }
    Ok(all)
}

impl Blueprint<'_> {
    /// Builds a module for each stage, with all parameters drawn in `f32` and rounded to `dtype`.
    ///
    /// Memory: the parameters, plus the largest one on the host while it is drawn, and the largest layer in `f32`.
    #[must_use]
    pub fn build(self, dtype: Dtype, device: &Device) -> Vec<Stage> {
        self.made(dtype, device, Some(Staging::default()))
    }

    /// Like [`build`](Self::build), for a device that computes nothing: no value is drawn on the host.
    #[must_use]
    pub fn build_shapes(self, dtype: Dtype, device: &Device) -> Vec<Stage> {
        self.made(dtype, device, None)
    }

    fn made(self, dtype: Dtype, device: &Device, staging: Option<Staging>) -> Vec<Stage> {
        let Self { shape, layers } = self;
        let mut maker = Maker {
            device,
            dtype,
            staging,
            embedding: None,
        };
        let mut layers = layers.into_iter();
        let stages = shape.stages.iter().map(|stage| {
            let of_stage = layers.by_ref().take(stage.layers.len());
            let ops = of_stage.map(|make| make(&mut maker)).collect();
            Stage::new(ops, shape.before(stage.layers.start).clone())
        });
        stages.collect()
    }
}
