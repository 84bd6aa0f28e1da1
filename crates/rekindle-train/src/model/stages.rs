//! How layers become stages.
//!
//! A stage is the unit that a schedule keeps or recomputes. Every layer of the model's list is one stage; a residual
//! with all its layers is one. Layers that only make a view cost nothing, and keeping their output keeps their input:
//! they join the stage before them, or the first stage after them if there is none before.

use std::ops::Range;

use super::{
    shape::ModelShape,
    spec::{LayerSpec, ModelSpec, SampleShape},
};

/// The stages of a model, in order. Together they cover every layer once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStages {
    /// The stages.
    pub stages: Vec<ModelStage>,
}

/// One stage of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStage {
    /// Its layers, as indices into [`ModelSpec::layers`].
    pub layers: Range<usize>,
    /// Kinds of its layers, with the index of the one that computes: `linear 12`, `conv2d 3 + flatten`.
    pub name: String,
    /// Shape of one sample before the stage.
    pub input: SampleShape,
    /// Shape of one sample after the stage.
    pub output: SampleShape,
    /// Number of values that training changes.
    pub param_count: u64,
}

impl LayerSpec {
    /// Whether the output is the input's own memory: a flatten, a reshape, or a dropout that never drops.
    #[must_use]
    pub fn is_view(&self) -> bool {
        match self {
            Self::Flatten | Self::Reshape { .. } => true,
            Self::Dropout { p } => *p == 0.0,
            _ => false,
        }
    }
}

impl ModelStages {
    /// Divides a model into stages. `shape` is the result of [`ModelSpec::infer`] for `model`.
    #[must_use]
    pub fn new(model: &ModelSpec, shape: &ModelShape) -> Self {
        let stages = ranges(&model.layers)
            .into_iter()
            .filter_map(|layers| {
                let shapes = shape.layers.get(layers.clone())?;
                Some(ModelStage {
                    name: name(&model.layers[layers.clone()], layers.start),
                    input: shapes.first()?.input.clone(),
                    output: shapes.last()?.output.clone(),
                    param_count: shapes.iter().map(|layer| layer.param_count).sum(),
                    layers,
                })
            })
            .collect();
        Self { stages }
    }
}

fn ranges(layers: &[LayerSpec]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut computes = false;
    for (index, layer) in layers.iter().enumerate() {
        match ranges.last_mut() {
            Some(stage) if layer.is_view() || !computes => stage.end = index + 1,
            _ => ranges.push(index..index + 1),
        }
        computes |= !layer.is_view();
    }
    ranges
}

fn name(layers: &[LayerSpec], first: usize) -> String {
    let numbered = layers
        .iter()
        .position(|layer| !layer.is_view())
        .unwrap_or(0);
    let parts: Vec<String> = layers
        .iter()
        .enumerate()
        .map(|(index, layer)| {
            if index == numbered {
                format!("{} {}", layer.kind(), first + index)
            } else {
                layer.kind().to_owned()
            }
        })
        .collect();
    parts.join(" + ")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    fn stages(input: SampleShape, layers: Vec<LayerSpec>) -> Vec<(Range<usize>, String)> {
        let model = ModelSpec { input, layers };
        let shape = model.infer().unwrap();
        let plan = ModelStages::new(&model, &shape);
        assert_eq!(plan.stages.first().unwrap().input, shape.input);
        assert_eq!(&plan.stages.last().unwrap().output, shape.output());
        assert_eq!(
            plan.stages
                .iter()
                .map(|stage| stage.param_count)
                .sum::<u64>(),
            shape.param_count()
        );
        plan.stages
            .into_iter()
            .map(|stage| (stage.layers, stage.name))
            .collect()
    }

    #[test]
    fn views_join_the_stage_before_them() {
        let layers = vec![
            LayerSpec::Relu,
            LayerSpec::Flatten,
            LayerSpec::Dropout { p: 0.0 },
            LayerSpec::Linear { out: 2, bias: true },
            LayerSpec::Residual(vec![LayerSpec::Flatten, LayerSpec::Relu]),
        ];
        assert_eq!(
            stages(SampleShape::float([2, 3]), layers),
            [
                (0..3, "relu 0 + flatten + dropout".to_owned()),
                (3..4, "linear 3".to_owned()),
                (4..5, "residual 4".to_owned())
            ]
        );
    }

    #[test]
    fn views_at_the_start_join_the_first_stage_that_computes() {
        let reshape = LayerSpec::Reshape { shape: vec![3, 2] };
        let layers = vec![
            reshape,
            LayerSpec::Flatten,
            LayerSpec::Tanh,
            LayerSpec::Flatten,
            LayerSpec::Gelu,
        ];
        assert_eq!(
            stages(SampleShape::float([6]), layers),
            [
                (0..4, "reshape + flatten + tanh 2 + flatten".to_owned()),
                (4..5, "gelu 4".to_owned())
            ]
        );
    }

    #[test]
    fn a_model_of_views_is_one_stage() {
        let layers = vec![LayerSpec::Flatten, LayerSpec::Flatten];
        assert_eq!(
            stages(SampleShape::float([6]), layers),
            [(0..2, "flatten 0 + flatten".to_owned())]
        );
    }
}
