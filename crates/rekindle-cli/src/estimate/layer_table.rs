//! The tree of layers as a table: repeats folded, residuals opened.

use rekindle_plan::Bytes;

use super::{
    Estimate,
    layers::{Layer, shape_text},
};
use crate::{
    table::{self, Table, several, thousands},
    terminal,
};

/// Columns that a narrow terminal can spare, the first first.
const SPARED: [usize; 4] = [6, 1, 5, 3];

/// The tree as a table, so many levels deep; its last line sums it up.
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
        "{} trainable parameters, {} frozen numbers (running statistics). In a row `N x` the figures are totals of \
         N repeats; indented rows show one repeat.",
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
