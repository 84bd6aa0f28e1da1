//! The tree of layers: repeats folded, residuals opened.

use rekindle_plan::Bytes;
use rekindle_train::{
    model::{
        shape::LayerShape,
        spec::{ElementKind, LayerSpec, SampleShape},
    },
    settings::TrainSettings,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::Estimate;
use crate::{
    config::Config,
    table::{self, Table, several, thousands},
    terminal,
};

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Layer {
    /// Kind of layer, and its main setting.
    pub name: String,
    /// Shape of one input sample.
    pub input_shape: Vec<usize>,
    /// Shape of one output sample.
    pub output_shape: Vec<usize>,
    /// Parameters that are trained.
    pub param_count: u64,
    /// Numbers that are kept and not trained: running statistics.
    pub frozen_count: u64,
    /// Multiply-adds of the matrix products of one forward.
    pub multiply_adds: u64,
    /// Bytes of the output.
    pub output_bytes: Bytes,
    /// The layers inside a residual; absent elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
}

/// Bytes of samples of a shape that run at once.
pub fn bytes(sample: &SampleShape, settings: &TrainSettings) -> Bytes {
    let width = match sample.kind {
        ElementKind::Float => settings.dtype.bytes(),
        ElementKind::Token => TOKEN_BYTES,
    };
    let numbers = sample
        .elements()
        .saturating_mul(settings.micro_batch() as u64);
    Bytes(numbers.saturating_mul(width))
}

/// Every layer of a config's model.
pub fn layers(config: &Config) -> Vec<Layer> {
    list(&config.model.layers, &config.shape.layers, &config.training)
}

fn list(specs: &[LayerSpec], shapes: &[LayerShape], settings: &TrainSettings) -> Vec<Layer> {
    let layer = |(spec, shape): (&LayerSpec, &LayerShape)| {
        let layers = match spec {
            LayerSpec::Residual { layers } => list(layers, &shape.inner, settings),
            _ => Vec::new(),
        };
        let inside: u64 = layers.iter().map(|one| one.frozen_count).sum();
        let samples = settings.micro_batch() as u64;
        Layer {
            name: describe(spec),
            input_shape: shape.input.dims.clone(),
            output_shape: shape.output.dims.clone(),
            param_count: shape.param_count,
            frozen_count: shape.statistics(spec) + inside,
            multiply_adds: shape.multiply_adds(spec).saturating_mul(samples),
            output_bytes: bytes(&shape.output, settings),
            layers,
        }
    };
    specs.iter().zip(shapes).map(layer).collect()
}

/// Bytes of a token id.
const TOKEN_BYTES: u64 = 4;

/// Columns to drop on a narrow terminal, in this order.
const SPARED: [usize; 4] = [6, 1, 5, 3];

/// The tree as a table with `levels` levels; its last line has the totals.
pub fn text(estimate: &Estimate, levels: usize) -> String {
    let mut table = table::table(
        [
            "layer",
            "input",
            "output",
            "params",
            "share",
            "mult-adds",
            "activation",
        ],
        3..7,
    );
    table::dense(&mut table, 3..7);
    table.add_row([
        "input".to_owned(),
        String::new(),
        shape_text(&estimate.input_shape),
        String::new(),
        String::new(),
        String::new(),
        estimate.input_bytes.to_string(),
    ]);
    let mut rows = Rows {
        table,
        param_count: estimate.param_count,
        levels,
    };
    rows.add(&estimate.layers, 1);
    rows.table.add_row([
        several(estimate.stages, "stage"),
        String::new(),
        String::new(),
        thousands(estimate.param_count),
        share(estimate.param_count, estimate.param_count),
        short(estimate.multiply_adds),
        String::new(),
    ]);
    let parameters = format!(
        "{} trainable parameters, {} frozen numbers (running statistics). A row `N x` has the totals of all N, rows \
         below it those of one.",
        thousands(estimate.param_count),
        thousands(estimate.frozen_count),
    );
    let width = terminal::columns().map_or(terminal::width(), usize::from);
    let shown = table::fitted(&rows.table, &SPARED, width);
    format!("{shown}\n\n{}", terminal::wrapped(&parameters, ""))
}

/// A table that rows are added to.
struct Rows {
    table: Table,
    /// Of the whole model.
    param_count: u64,
    /// How deep layers inside layers are shown.
    levels: usize,
}

impl Rows {
    fn add(&mut self, layers: &[Layer], level: usize) {
        if level > self.levels {
            return;
        }
        let indent = "  ".repeat(level - 1);
        for run in runs(layers) {
            match run.layers {
                [layer] => self.row(&indent, run.times, Some(layer), run.layers, level),
                layers if run.times > 1 => {
                    self.row(&indent, run.times, None, layers, level);
                }
                layers => {
                    for layer in layers {
                        self.row(&indent, 1, Some(layer), std::slice::from_ref(layer), level);
                    }
                }
            }
        }
    }

    /// The totals of `times` times these layers, which are one or a group; then what is inside.
    fn row(
        &mut self,
        indent: &str,
        times: usize,
        one: Option<&Layer>,
        layers: &[Layer],
        level: usize,
    ) {
        let total = |of: fn(&Layer) -> u64| {
            let sum = layers.iter().map(of).fold(0, u64::saturating_add);
            sum.saturating_mul(times as u64)
        };
        let params = total(|layer| layer.param_count);
        let name = one.map_or("", |layer| &layer.name);
        let name = match times {
            1 => format!("{indent}{name}"),
            _ => format!("{indent}{} x {name}", thousands(times as u64)),
        };
        let shape = |layer: Option<&Layer>, of: fn(&Layer) -> &[usize]| {
            layer.map_or(String::new(), |layer| shape_text(of(layer)))
        };
        self.table.add_row([
            name.trim_end().to_owned(),
            shape(layers.first(), |layer| &layer.input_shape),
            shape(layers.last(), |layer| &layer.output_shape),
            thousands(params),
            share(params, self.param_count),
            short(total(|layer| layer.multiply_adds)),
            Bytes(total(|layer| layer.output_bytes.0)).to_string(),
        ]);
        self.add(one.map_or(layers, |layer| &layer.layers), level + 1);
    }
}

/// `12.5%` of the model's parameters; nothing for none.
fn share(params: u64, of: u64) -> String {
    match params {
        0 => String::new(),
        _ => format!("{:.1}%", 100.0 * params as f64 / of as f64),
    }
}

/// The layer with its most characteristic setting.
pub fn describe(spec: &LayerSpec) -> String {
    let kind = spec.kind();
    match spec {
        LayerSpec::Linear { out, .. } => format!("{kind} {out}"),
        LayerSpec::Conv2d { out, kernel, .. } => format!("{kind} {out}, {}", shape_text(kernel)),
        LayerSpec::MaxPool2d(pool) | LayerSpec::AvgPool2d(pool) => {
            format!("{kind} {}", shape_text(&pool.kernel))
        }
        LayerSpec::Dropout { p } => format!("{kind} {p}"),
        LayerSpec::Embedding { vocab, dim } => format!("{kind} {vocab}x{dim}"),
        LayerSpec::Attention { heads, .. } => format!("{kind} {heads}"),
        _ => kind.to_owned(),
    }
}

/// Layers that follow each other several times.
struct Run<'a> {
    times: usize,
    layers: &'a [Layer],
}

/// Maximum length of a repeated group.
const LONGEST_GROUP: usize = 32;

/// Folds repeated layers and groups of layers, longest repetition first, with the shortest group.
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
            // The last of equals is chosen: iterate from long groups to short ones.
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
            input_shape: vec![1],
            output_shape: vec![1],
            param_count: 1,
            frozen_count: 0,
            multiply_adds: 1,
            output_bytes: Bytes(1),
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
