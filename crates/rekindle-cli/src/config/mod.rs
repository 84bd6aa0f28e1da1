//! A run's configuration: the TOML file, read and checked, with the command line's arguments applied.
//!
//! | module | what it owns |
//! |---|---|
//! | [`schema`] | the types that serde reads, and the JSON Schema made from them |
//! | [`form`], [`check`] | parts of the schema; the file against it, value by value |
//! | [`follow`] | defaults that follow from other keys |
//! | [`rules`] | rules between keys |
//! | [`node`], [`problem`] | values with their places in the file; what is wrong with one |
//! | [`layers`] | the layers in `[model]`, each with its place |
//! | [`vary`] | their depth and width |
//! | [`data`], [`run`] | `[data]`, `[run]` |
//!
//! A key is defined with its value's type: in `rekindle-train`'s `data::settings`, `model::spec` and `settings`, and
//! here in [`run`]. Its type, default, range and meaning are there; `docs/config.md` and `docs/schema/config.json` are
//! written from them.
//!
//! A [`Config`] is consistent: shapes fit from layer to layer, the output fits the loss, the loss fits the data.

mod check;
mod data;
mod follow;
pub mod form;
mod layers;
mod node;
mod offload;
mod problem;
#[cfg(test)]
pub mod reference;
mod rules;
mod run;
mod schema;
pub mod vary;

use std::{ops::Range, path::Path};

use rekindle::{meter::Count, record::Kernels};
use rekindle_plan::Bytes;
use rekindle_train::{
    Estimated,
    chunks::check_loss_chunks,
    data::{
        Dataset, Split, TargetKind,
        settings::{DataSettings, Source},
    },
    model::{
        shape::ModelShape,
        shape_error::ShapeError,
        spec::{ElementKind, ModelSpec, SampleShape},
    },
    settings::{OnNonFinite, TrainSettings},
};
use serde_json::{Map, Value};
use toml::de::DeTable;

use self::{
    layers::Layers,
    node::{Node, at},
    problem::Problem,
    schema::{ConfigFile, LAYERS},
};
pub use self::{offload::OffloadChoice, run::RunKeys};
use crate::{args::ReplaceArgs, exit, failure::Failure};

/// Everything that decides a run.
#[derive(Debug)]
pub struct Config {
    /// The model.
    pub model: ModelSpec,
    /// Shapes of its activations.
    pub shape: ModelShape,
    /// Groups of its layers that repeat; none where another depth was asked for.
    pub groups: Vec<vary::Group>,
    /// Where samples come from.
    pub data: DataSettings,
    /// How the model is trained.
    pub training: TrainSettings,
    /// How it is cut, and where it runs.
    pub run: RunKeys,
}

/// Arguments that replace what a config says.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Arguments of all commands with a config.
    pub replace: ReplaceArgs,
    /// Optimizer steps.
    pub steps: Option<usize>,
    /// The seed.
    pub seed: Option<u64>,
    /// What to do if a step's loss or gradients are not finite.
    pub on_nonfinite: Option<OnNonFinite>,
}

impl From<&ReplaceArgs> for Overrides {
    fn from(replace: &ReplaceArgs) -> Self {
        Self {
            replace: replace.clone(),
            ..Self::default()
        }
    }
}

/// Reads a config and checks all that can be checked without opening the data.
pub fn load(path: &Path, overrides: &Overrides) -> Result<Config, Failure> {
    let text = crate::input::text(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(&text, base, overrides).map_err(|mistake| match mistake {
        Mistake::File(problem) => Failure {
            code: exit::USAGE,
            report: problem.in_file(path, &text).into(),
        },
        Mistake::Arguments(message) => Failure::usage(message),
    })
}

fn parse(text: &str, base: &Path, overrides: &Overrides) -> Result<Config, Mistake> {
    let table = DeTable::parse(text).map_err(|error| {
        let span = within(error.span().unwrap_or(0..0), text);
        Problem::new(format!("not TOML: {}", error.message()), "here", span)
    })?;
    let document = table.get_ref();
    check::check(document, within(0..1, text))?;
    // An error of a rule that is not in the schema has no position.
    let unplaced = |message: String| Problem::new(message, "here", within(0..1, text));
    let misread = |error: serde_json::Error| unplaced(error.to_string());
    let mut json: Map<String, Value> =
        toml::from_str(text).map_err(|error| unplaced(error.to_string()))?;
    let data = json.get("data").cloned().unwrap_or_default();
    let DataSettings { source, .. } = serde_json::from_value(data).map_err(misread)?;

    let list = at(document, &["model", LAYERS]);
    let list = list.ok_or_else(|| Problem::new("no `layers`", "here", within(0..1, text)))?;
    let mut layers = Layers::place_all(&list)?;
    layers::check_embeddings(&list, source.vocab())?;
    follow::write_out(&mut json, &source).map_err(misread)?;
    let file: ConfigFile = serde_json::from_value(json.into()).map_err(misread)?;

    layers.specs = file.model.layers;
    let layers = replace_sizes(layers, overrides)?;
    let mut data = file.data;
    data::start_at(base, &mut data.source);
    let input = rules::input(document, file.model.input, &data.source)?;
    replace_data(&mut data.source, &input, overrides)?;

    let target = data.source.target();
    let mut training = file.train;
    rules::training(document, &training, target)?;
    replace_numbers(&mut training, overrides)?;
    rules::run(document)?;
    let mut run = file.run;
    run.plan = run.plan.map(|plan| base.join(plan));

    let model = ModelSpec {
        input,
        layers: layers.specs.clone(),
    };
    let shape = model
        .infer()
        .map_err(|error| misfit(&error, &layers, &list))?;
    let last = layers.places.last().map_or(&list.span, |place| &place.span);
    let tokens = model.input.dims.iter().product();
    check_output(shape.output(), target, tokens, last.clone())?;
    if let Err(refused) = check_loss_chunks(&training, &model) {
        return Err(match at(document, &["train", "loss_chunks"]) {
            Some(node) if overrides.replace.loss_chunks.is_none() => {
                Problem::new(refused.to_string(), "set here", node.span).into()
            }
            _ => Mistake::Arguments(refused.to_string()),
        });
    }
    Ok(Config {
        model,
        shape,
        groups: layers.groups,
        data,
        training,
        run,
    })
}

impl Config {
    /// Which bytes a budget bounds: as typed, as the config says, or the default.
    pub fn count(&self, typed: Option<Count>) -> Count {
        typed.or(self.run.count).unwrap_or_default()
    }

    /// A step of this model with other settings, to be estimated.
    pub fn estimated<'a>(&'a self, settings: &'a TrainSettings, kernels: Kernels) -> Estimated<'a> {
        Estimated {
            model: &self.model,
            settings,
            target: self.data.source.target(),
            ranks: 1,
            kernels,
            held: Bytes::ZERO,
        }
    }

    /// Opens the data and checks that the model takes its samples.
    pub fn open_data(&self) -> Result<Split, Failure> {
        let split = rekindle_train::data::open(&self.data, self.training.seed)
            .map_err(|error| data::failure(error, &self.data.source))?;
        self.check_data(&*split.train)?;
        Ok(split)
    }

    /// Checks that the model takes the samples that were found.
    pub fn check_data(&self, data: &dyn Dataset) -> Result<(), Failure> {
        let (found, wanted) = (data.sample_shape(), &self.model.input);
        if found == *wanted {
            return Ok(());
        }
        Err(Failure::with_help(
            exit::USAGE,
            format!("a sample of the data is {found}, but the model takes {wanted}"),
            format!("set `input = {:?}` in [model]", found.dims),
        ))
    }
}

/// Something wrong in the file, or in arguments that do not fit it.
#[derive(Debug)]
enum Mistake {
    File(Problem),
    Arguments(String),
}

impl From<Problem> for Mistake {
    fn from(problem: Problem) -> Self {
        Self::File(problem)
    }
}

fn replace_sizes(mut layers: Layers, overrides: &Overrides) -> Result<Layers, Mistake> {
    let refused =
        |name: &str, why: &str| Mistake::Arguments(format!("`--{name}` was given, but {why}"));
    if let Some(width) = overrides.replace.width {
        let from = vary::width(&layers.specs)
            .ok_or_else(|| refused("width", "the model has no hidden linear or conv2d layer"))?;
        layers.specs = vary::widened(&layers.specs, from, not_zero("width", width)?);
    }
    match overrides.replace.depth {
        None => Ok(layers),
        Some(depth) => layers
            .with_depth(not_zero("depth", depth)?)
            .map_err(|why| refused("depth", &why)),
    }
}

fn not_zero(name: &str, size: usize) -> Result<usize, Mistake> {
    match size {
        0 => Err(Mistake::Arguments(format!(
            "`--{name}` is 0, but must be at least 1"
        ))),
        size => Ok(size),
    }
}

fn replace_data(
    source: &mut Source,
    input: &SampleShape,
    overrides: &Overrides,
) -> Result<(), Mistake> {
    if overrides.replace.data.is_some() {
        *source = source.synthetic_like();
        if let Source::Synthetic { shape, .. } = source {
            shape.clone_from(&input.dims);
        }
    }
    if let Some(folder) = &overrides.replace.data_dir {
        *source = data::in_folder(source, folder).ok_or_else(|| {
            Mistake::Arguments(
                "`--data-dir` was given, but synthetic data has no files: leave it out".into(),
            )
        })?;
    }
    Ok(())
}

fn replace_numbers(training: &mut TrainSettings, overrides: &Overrides) -> Result<(), Mistake> {
    let size = |name: &str, typed: Option<usize>, configured| {
        typed.map_or(Ok(configured), |typed| not_zero(name, typed))
    };
    training.batch = size("batch", overrides.replace.batch, training.batch)?;
    if !training.batch.is_multiple_of(training.accumulate) {
        return Err(Mistake::Arguments(format!(
            "`--batch` is {}, but the config runs a batch in {} equal parts (`accumulate`)",
            training.batch, training.accumulate
        )));
    }
    training.steps = size("steps", overrides.steps, training.steps)?;
    training.seed = overrides.seed.unwrap_or(training.seed);
    training.dtype = overrides.replace.dtype.unwrap_or(training.dtype);
    training.master_weights &= !overrides.replace.no_master_weights;
    training.loss_scale = overrides.replace.loss_scale.unwrap_or(training.loss_scale);
    training.update = overrides.replace.update.unwrap_or(training.update);
    training.loss_chunks = overrides
        .replace
        .loss_chunks
        .unwrap_or(training.loss_chunks);
    training.on_nonfinite = overrides.on_nonfinite.unwrap_or(training.on_nonfinite);
    training.optimizer_state = overrides
        .replace
        .optimizer_state
        .unwrap_or(training.optimizer_state);
    Ok(())
}

fn misfit(error: &ShapeError, layers: &Layers, list: &Node<'_>) -> Problem {
    let span = layers
        .place(&error.path)
        .map_or_else(|| list.span.clone(), |place| place.span.clone());
    Problem::new(error.to_string(), format!("gets {}", error.got), span)
}

/// Every loss requires one row of numbers, long enough for the target, or one row for each of a sample's `tokens`.
fn check_output(
    output: &SampleShape,
    target: TargetKind,
    tokens: usize,
    last: Range<usize>,
) -> Result<(), Problem> {
    let (fits, wanted) = match target {
        TargetKind::Classes(classes) => (
            matches!(output.dims[..], [width] if width >= classes),
            format!(
                "cross_entropy needs one number for each of the data's {classes} classes: [{classes}]"
            ),
        ),
        TargetKind::TokenClasses(classes) => (
            matches!(output.dims[..], [length, width] if length == tokens && width >= classes),
            format!(
                "cross_entropy needs one number for each of the data's {classes} classes, of each of a sample's {tokens} token ids: \
                 [{tokens}, {classes}]"
            ),
        ),
        TargetKind::Values(values) => (
            output.dims == [values],
            format!(
                "mean_squared_error needs as many numbers as the data's targets have: [{values}]"
            ),
        ),
    };
    if fits && output.kind == ElementKind::Float {
        return Ok(());
    }
    let width = match target {
        TargetKind::Classes(width)
        | TargetKind::TokenClasses(width)
        | TargetKind::Values(width) => width,
    };
    let flatten = if output.dims.len() > 1 && !matches!(target, TargetKind::TokenClasses(_)) {
        "{ type = \"flatten\" }, "
    } else {
        ""
    };
    Err(Problem::new(
        format!("the model gives {output}, but {wanted}"),
        format!("gives {output}"),
        last,
    )
    .help(format!(
        "end with {flatten}{{ type = \"linear\", out = {width} }}"
    )))
}

/// A position inside the text: an error at its very end would point past it.
fn within(span: Range<usize>, text: &str) -> Range<usize> {
    let end = span.end.min(text.len());
    span.start.min(end)..end
}

#[cfg(test)]
mod tests;
