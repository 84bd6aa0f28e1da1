//! `rekindle estimate`: what a model is made of and where its memory goes, counted and not run.

use std::fmt::Write;

use comfy_table::Table;
use rekindle::model::{
    cost::{ElementBytes, LayerCost, ModelCost},
    spec::{LayerSpec, SampleShape},
    stages::StagePlan,
};
use rekindle_plan::Bytes;
use serde::Serialize;

use crate::{
    args::EstimateArgs,
    config::{self, Config, Overrides},
    failure::Outcome,
    output, table,
};

/// Counts.
pub fn run(args: &EstimateArgs) -> Outcome {
    let config = config::load(&args.config.config, &Overrides::from(&args.config))?;
    let estimate = Estimate::new(&config);
    if args.json {
        output::json(&estimate)
    } else {
        output::text(&estimate.text())
    }
}

/// A model's layers and memory at one batch size.
#[derive(Debug, Serialize)]
struct Estimate {
    batch: usize,
    input_shape: Vec<usize>,
    input_bytes: Bytes,
    layers: Vec<Row>,
    stages: usize,
    param_count: u64,
    param_bytes: Bytes,
    /// Gradients of all parameters, as large as they are.
    grad_bytes: Bytes,
    optimizer_bytes: Bytes,
    /// Running statistics.
    state_bytes: Bytes,
    /// Everything that a plain step keeps for its backward, the input included.
    activation_bytes: Bytes,
    /// The sum of the above: a plain step without temporaries.
    total_bytes: Bytes,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    name: String,
    output_shape: Vec<usize>,
    param_count: u64,
    output_bytes: Bytes,
    saved_bytes: Bytes,
    multiply_adds: u64,
}

impl Estimate {
    fn new(config: &Config) -> Self {
        let (model, shape) = (&config.model, &config.shape);
        let batch = config.training.batch;
        let plan = StagePlan::new(model, shape);
        let cost = ModelCost::new(model, shape, &plan, batch, ElementBytes::FLEX);

        let layers = model
            .layers
            .iter()
            .zip(&shape.layers)
            .zip(&cost.layers)
            .map(|((spec, shape), cost)| Row::new(spec, &shape.output, cost))
            .collect();
        let sum =
            |of: fn(&LayerCost) -> u64| cost.stages.iter().map(|stage| Bytes(of(stage))).sum();
        let input_bytes = Bytes(cost.input_bytes);
        let param_bytes = sum(|stage| stage.param_bytes);
        let state_bytes = sum(|stage| stage.state_bytes);
        let activation_bytes = input_bytes + sum(|stage| stage.saved_bytes);
        let optimizer_bytes = config.training.optimizer.state_bytes(param_bytes);
        Self {
            batch,
            input_shape: model.input.dims.clone(),
            input_bytes,
            layers,
            stages: plan.stages.len(),
            param_count: shape.param_count(),
            param_bytes,
            grad_bytes: param_bytes,
            optimizer_bytes,
            state_bytes,
            activation_bytes,
            total_bytes: param_bytes
                + param_bytes
                + optimizer_bytes
                + state_bytes
                + activation_bytes,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n\n{}\n\n", self.layer_table(), self.total_table());
        let share = 100.0 * self.activation_bytes.0 as f64 / self.total_bytes.0.max(1) as f64;
        let _ = writeln!(
            text,
            "{} stages. Activations are {share:.0}% of the total: {}\n\
             Counted for f32; temporaries and pooled memory come on top.",
            self.stages,
            if share >= 50.0 {
                "checkpointing has much to save."
            } else {
                "checkpointing can save no more than that."
            }
        );
        text
    }

    fn layer_table(&self) -> Table {
        let mut table = table::table(
            ["layer", "output", "parameters", "activation", "saved"],
            2..5,
        );
        table.add_row([
            "input".to_owned(),
            shape_text(&self.input_shape),
            String::new(),
            self.input_bytes.to_string(),
            self.input_bytes.to_string(),
        ]);
        for run in runs(&self.layers) {
            match run.rows {
                [row] if run.times > 1 => {
                    table.add_row(row.cells(&format!("{} x ", thousands(run.times as u64))));
                }
                rows if run.times > 1 => {
                    table.add_row(run.heading());
                    table.add_rows(rows.iter().map(|row| row.cells("  ")));
                }
                rows => {
                    table.add_rows(rows.iter().map(|row| row.cells("")));
                }
            }
        }
        table
    }

    fn total_table(&self) -> Table {
        let mut table = table::table([&format!("at batch {}", self.batch), ""], 1..2);
        table.add_row([
            format!("parameters ({})", thousands(self.param_count)),
            self.param_bytes.to_string(),
        ]);
        for (name, bytes) in [
            ("gradients", self.grad_bytes),
            ("optimizer state", self.optimizer_bytes),
            ("running statistics", self.state_bytes),
            ("activations, input included", self.activation_bytes),
            ("total", self.total_bytes),
        ] {
            table.add_row([name.to_owned(), bytes.to_string()]);
        }
        table
    }
}

impl Row {
    fn new(spec: &LayerSpec, output: &SampleShape, cost: &LayerCost) -> Self {
        Self {
            name: describe(spec),
            output_shape: output.dims.clone(),
            param_count: cost.param_count,
            output_bytes: Bytes(cost.output_bytes),
            saved_bytes: Bytes(cost.saved_bytes),
            multiply_adds: cost.multiply_adds,
        }
    }

    fn cells(&self, prefix: &str) -> [String; 5] {
        [
            format!("{prefix}{}", self.name),
            shape_text(&self.output_shape),
            thousands(self.param_count),
            self.output_bytes.to_string(),
            self.saved_bytes.to_string(),
        ]
    }
}

/// The layer with the setting that tells it from others of its kind.
fn describe(spec: &LayerSpec) -> String {
    let kind = spec.kind();
    match spec {
        LayerSpec::Linear { out, .. } => format!("{kind} {out}"),
        LayerSpec::Conv2d { out, kernel, .. } => format!("{kind} {out}, {}", by(kernel)),
        LayerSpec::MaxPool2d(pool) | LayerSpec::AvgPool2d(pool) => {
            format!("{kind} {}", by(&pool.kernel))
        }
        LayerSpec::Dropout { p } => format!("{kind} {p}"),
        LayerSpec::Embedding { vocab, dim } => format!("{kind} {vocab} x {dim}"),
        LayerSpec::Residual { layers } => format!("{kind} of {} layers", layers.len()),
        _ => kind.to_owned(),
    }
}

fn by(sizes: &[usize; 2]) -> String {
    format!("{}x{}", sizes[0], sizes[1])
}

/// Rows that follow each other several times.
struct Run<'a> {
    times: usize,
    rows: &'a [Row],
}

impl Run<'_> {
    /// The line above the rows of a group: what all its turns come to.
    fn heading(&self) -> [String; 5] {
        let times = self.times as u64;
        let saved: Bytes = self.rows.iter().map(|row| row.saved_bytes).sum();
        let params: u64 = self.rows.iter().map(|row| row.param_count).sum();
        [
            format!("{} x group, in all", thousands(times)),
            String::new(),
            thousands(params.saturating_mul(times)),
            String::new(),
            Bytes(saved.0.saturating_mul(times)).to_string(),
        ]
    }
}

/// Longest group that is looked for.
const LONGEST_GROUP: usize = 32;

/// Folds repeated rows and groups of rows, longest stretch first and shortest group for it.
fn runs(rows: &[Row]) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    let (mut single, mut at) = (0, 0);
    while at < rows.len() {
        let rest = &rows[at..];
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
                        rows: &rows[single..at],
                    });
                }
                runs.push(Run {
                    times,
                    rows: &rest[..group],
                });
                at += times * group;
                single = at;
            }
            None => at += 1,
        }
    }
    if single < rows.len() {
        runs.push(Run {
            times: 1,
            rows: &rows[single..],
        });
    }
    runs
}

/// `[1, 28, 28]` as `1 x 28 x 28`.
fn shape_text(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    dims.join(" x ")
}

/// `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &str) -> Vec<Row> {
        let row = |name: char| Row {
            name: name.into(),
            output_shape: vec![1],
            param_count: 1,
            output_bytes: Bytes(1),
            saved_bytes: Bytes(1),
            multiply_adds: 1,
        };
        names.chars().map(row).collect()
    }

    fn folded(names: &str) -> String {
        runs(&rows(names))
            .iter()
            .map(|run| {
                let names: String = run.rows.iter().map(|row| row.name.as_str()).collect();
                format!("{}{names} ", run.times)
            })
            .collect()
    }

    #[test]
    fn repeated_rows_and_groups_are_folded() {
        assert_eq!(folded("abc"), "1abc ");
        assert_eq!(folded("aaaa"), "4a ");
        assert_eq!(folded("xababaay"), "1x 2ab 2a 1y ");
        assert_eq!(folded("xabababy"), "1x 3ab 1y ");
        assert_eq!(folded("aabaab"), "2aab ");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(206_538_153), "206,538,153");
        assert_eq!(thousands(100_000), "100,000");
    }
}
