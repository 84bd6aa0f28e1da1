//! How layers become stages.
//!
//! A stage is the unit that a schedule keeps or recomputes. Every layer of the model's list is one stage; a residual
//! with all its layers is one. Layers that only make a view cost nothing, and keeping their output keeps their input:
//! they join the stage before them, or the first stage after them if there is none before.

use std::ops::Range;

use super::spec::LayerSpec;

/// One stage of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStage {
    /// Its layers, as indices into [`ModelSpec::layers`](super::spec::ModelSpec::layers).
    pub layers: Range<usize>,
    /// Kinds of its layers, with the index of the one that computes: `linear 12`, `conv2d 3 + flatten`.
    pub name: String,
}

/// The stages of a list of layers, in order. Together they cover every layer once.
pub(super) fn stages(layers: &[LayerSpec]) -> Vec<ModelStage> {
    let named = |range: Range<usize>| ModelStage {
        name: name(&layers[range.clone()], range.start),
        layers: range,
    };
    ranges(layers).into_iter().map(named).collect()
}

/// Whether the output is the input's own memory: a flatten, or a dropout that never drops.
fn is_view(layer: &LayerSpec) -> bool {
    match layer {
        LayerSpec::Flatten => true,
        LayerSpec::Dropout { p } => *p == 0.0,
        _ => false,
    }
}

fn ranges(layers: &[LayerSpec]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut computes = false;
    for (index, layer) in layers.iter().enumerate() {
        match ranges.last_mut() {
            Some(stage) if is_view(layer) || !computes => stage.end = index + 1,
            _ => ranges.push(index..index + 1),
        }
        computes |= !is_view(layer);
    }
    ranges
}

fn name(layers: &[LayerSpec], first: usize) -> String {
    let numbered = layers.iter().position(|layer| !is_view(layer)).unwrap_or(0);
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
mod tests {
    use super::*;

    fn divided(layers: &[LayerSpec]) -> Vec<(Range<usize>, String)> {
        let stages = stages(layers).into_iter();
        stages.map(|stage| (stage.layers, stage.name)).collect()
    }

    #[test]
    fn views_join_the_stage_before_them() {
        let layers = [
            LayerSpec::Relu,
            LayerSpec::Flatten,
            LayerSpec::Dropout { p: 0.0 },
            LayerSpec::Linear { out: 2, bias: true },
            LayerSpec::Residual(vec![LayerSpec::Flatten, LayerSpec::Relu]),
        ];
        assert_eq!(
            divided(&layers),
            [
                (0..3, "relu 0 + flatten + dropout".to_owned()),
                (3..4, "linear 3".to_owned()),
                (4..5, "residual 4".to_owned())
            ]
        );
    }

    #[test]
    fn views_at_the_start_join_the_first_stage_that_computes() {
        let layers = [
            LayerSpec::Dropout { p: 0.0 },
            LayerSpec::Flatten,
            LayerSpec::Tanh,
            LayerSpec::Flatten,
            LayerSpec::Gelu,
        ];
        assert_eq!(
            divided(&layers),
            [
                (0..4, "dropout + flatten + tanh 2 + flatten".to_owned()),
                (4..5, "gelu 4".to_owned())
            ]
        );
    }

    #[test]
    fn a_model_of_views_is_one_stage() {
        let layers = [LayerSpec::Flatten, LayerSpec::Flatten];
        assert_eq!(divided(&layers), [(0..2, "flatten 0 + flatten".to_owned())]);
    }
}
