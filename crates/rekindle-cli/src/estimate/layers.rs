//! The tree of layers: repeats folded, residuals opened.

use comfy_table::Table;
use rekindle_plan::Bytes;
use rekindle_train::model::{
    cost::ElementBytes,
    shape::ModelShape,
    spec::{LayerSpec, ModelSpec},
    tree::{LayerNode, tree},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::Estimate;
use crate::table::{self, thousands};

/// One layer, as if it were a stage by itself.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Layer {
    /// Kind of layer, and its main setting.
    pub name: String,
    /// Shape of one output sample.
    pub output_shape: Vec<usize>,
    /// Parameters that are trained.
    pub param_count: u64,
    /// Multiply-adds of the matrix products of one forward.
    pub multiply_adds: u64,
    /// Bytes of the output.
    pub output_bytes: Bytes,
    /// Bytes that a tracked forward keeps for the backward, the output included, as if the layer were a stage by
    /// itself.
    pub saved_bytes: Bytes,
    /// The layers inside a residual; absent elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
}

/// Counts every layer.
pub fn layers(
    model: &ModelSpec,
    shape: &ModelShape,
    batch: usize,
    bytes: ElementBytes,
) -> Vec<Layer> {
    tree(model, shape, batch, bytes).iter().map(layer).collect()
}

fn layer(node: &LayerNode<'_>) -> Layer {
    Layer {
        name: describe(node.spec),
        output_shape: node.shape.output.dims.clone(),
        param_count: node.cost.param_count,
        multiply_adds: node.cost.multiply_adds,
        output_bytes: Bytes(node.cost.output_bytes),
        saved_bytes: Bytes(node.cost.saved_bytes),
        layers: node.inner.iter().map(layer).collect(),
    }
}

/// Columns that a narrow terminal can spare, the first first.
const SPARED: [usize; 3] = [3, 4, 2];

/// The tree as a table; its last line sums it up.
pub fn text(estimate: &Estimate) -> String {
    let mut table = table::table(
        [
            "layer",
            "output",
            "parameters",
            "mult-adds",
            "activation",
            "saved",
        ],
        2..6,
    );
    table::tight(&mut table);
    table.add_row([
        "input".to_owned(),
        shape_text(&estimate.input_shape),
        String::new(),
        String::new(),
        estimate.input_bytes.to_string(),
        String::new(),
    ]);
    add(&mut table, &estimate.layers, 0);
    table.add_row([
        format!("{} stages", thousands(estimate.stages as u64)),
        String::new(),
        thousands(estimate.param_count),
        short(estimate.multiply_adds),
        String::new(),
        estimate.saved_bytes.to_string(),
    ]);
    table::shown(&table, &SPARED)
}

fn add(table: &mut Table, layers: &[Layer], depth: usize) {
    let indent = "  ".repeat(depth);
    for run in runs(layers) {
        let times = thousands(run.times as u64);
        match run.layers {
            [layer] if run.times > 1 => {
                add_one(table, layer, &format!("{indent}{times} x "), depth)
            }
            layers if run.times > 1 => {
                table.add_row([format!("{indent}{times} x")]);
                add(table, layers, depth + 1);
            }
            layers => {
                for layer in layers {
                    add_one(table, layer, &indent, depth);
                }
            }
        }
    }
}

fn add_one(table: &mut Table, layer: &Layer, before: &str, depth: usize) {
    table.add_row([
        format!("{before}{}", layer.name),
        shape_text(&layer.output_shape),
        thousands(layer.param_count),
        short(layer.multiply_adds),
        layer.output_bytes.to_string(),
        layer.saved_bytes.to_string(),
    ]);
    add(table, &layer.layers, depth + 1);
}

/// The layer with the setting that tells it from others of its kind.
fn describe(spec: &LayerSpec) -> String {
    let kind = spec.kind();
    match spec {
        LayerSpec::Linear { out, .. } => format!("{kind} {out}"),
        LayerSpec::Conv2d { out, kernel, .. } => format!("{kind} {out}, {}", shape_text(kernel)),
        LayerSpec::MaxPool2d(pool) | LayerSpec::AvgPool2d(pool) => {
            format!("{kind} {}", shape_text(&pool.kernel))
        }
        LayerSpec::Dropout { p } => format!("{kind} {p}"),
        LayerSpec::Embedding { vocab, dim } => format!("{kind} {vocab}x{dim}"),
        _ => kind.to_owned(),
    }
}

/// Layers that follow each other several times.
struct Run<'a> {
    times: usize,
    layers: &'a [Layer],
}

/// Longest group that is looked for.
const LONGEST_GROUP: usize = 32;

/// Folds repeated layers and groups of layers, longest stretch first and shortest group for it.
fn runs(layers: &[Layer]) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    let (mut single, mut at) = (0, 0);
    while at < layers.len() {
        let rest = &layers[at..];
        let best = (1..=LONGEST_GROUP.min(rest.len() / 2))
            .map(|group| {
                let same = rest.chunks_exact(group).skip(1);
                (
                    1 + same.take_while(|chunk| *chunk == &rest[..group]).count(),
                    group,
                )
            })
            .filter(|(times, _)| *times > 1)
            // The last of equals wins: go from long groups to short ones.
            .rev()
            .max_by_key(|(times, group)| times * group);
        match best {
            Some((times, group)) => {
                if single < at {
                    runs.push(Run {
                        times: 1,
                        layers: &layers[single..at],
                    });
                }
                runs.push(Run {
                    times,
                    layers: &rest[..group],
                });
                at += times * group;
                single = at;
            }
            None => at += 1,
        }
    }
    if single < layers.len() {
        runs.push(Run {
            times: 1,
            layers: &layers[single..],
        });
    }
    runs
}

/// `[1, 28, 28]` as `1x28x28`.
fn shape_text(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    dims.join("x")
}

/// `8388608` as `8.4 M`; nothing for 0.
fn short(count: u64) -> String {
    let mut value = count as f64;
    if count == 0 {
        return String::new();
    }
    if count < 1000 {
        return count.to_string();
    }
    for unit in ["k", "M", "G", "T", "P"] {
        value /= 1000.0;
        let text = format!("{value:.1}");
        if value < 1000.0 && text != "1000.0" {
            return format!("{text} {unit}");
        }
    }
    format!("{value:.0} P")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(names: &str) -> Vec<Layer> {
        let layer = |name: char| Layer {
            name: name.into(),
            output_shape: vec![1],
            param_count: 1,
            multiply_adds: 1,
            output_bytes: Bytes(1),
            saved_bytes: Bytes(1),
            layers: Vec::new(),
        };
        names.chars().map(layer).collect()
    }

    fn folded(names: &str) -> String {
        runs(&layers(names))
            .iter()
            .map(|run| {
                let names: String = run.layers.iter().map(|row| row.name.as_str()).collect();
                format!("{}{names} ", run.times)
            })
            .collect()
    }

    #[test]
    fn repeated_layers_and_groups_are_folded() {
        assert_eq!(folded("abc"), "1abc ");
        assert_eq!(folded("aaaa"), "4a ");
        assert_eq!(folded("xababaay"), "1x 2ab 2a 1y ");
        assert_eq!(folded("xabababy"), "1x 3ab 1y ");
        assert_eq!(folded("aabaab"), "2aab ");
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!(short(0), "");
        assert_eq!(short(320), "320");
        assert_eq!(short(8_388_608), "8.4 M");
        assert_eq!(short(999_990_000), "1.0 G");
    }
}
