//! A run's configuration: the TOML file, read and checked, with the command line's arguments laid over it.
//!
//! | module | what it reads |
//! |---|---|
//! | [`reader`], [`problem`] | values with their places in the file; what is wrong with one |
//! | [`layers`] | the layers in `[model]` |
//! | [`vary`] | what depth and width of them mean |
//! | [`data`], [`training`], [`run`] | `[data]`, `[train]`, `[run]` |
//!
//! A [`Config`] is consistent: shapes fit from layer to layer, the output fits the loss, the loss fits the data.

mod data;
mod layers;
mod problem;
mod reader;
mod run;
mod training;
pub mod vary;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use rekindle::{Dtype, meter::Count, record::Update};
use rekindle_train::{
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
use toml::de::DeTable;

pub use self::run::{RunKeys, TypedSchedule};
use self::{
    layers::Layers,
    problem::Problem,
    reader::{Node, Section},
};
use crate::{
    args::{CountChoice, ReplaceArgs},
    exit,
    failure::Failure,
};

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
    /// Samples in each step.
    pub batch: Option<usize>,
    /// How often the largest group of layers repeats.
    pub depth: Option<usize>,
    /// The size that most hidden layers have.
    pub width: Option<usize>,
    /// Optimizer steps.
    pub steps: Option<usize>,
    /// The seed.
    pub seed: Option<u64>,
    /// The type of parameters and activations.
    pub dtype: Option<Dtype>,
    /// When parameters are updated.
    pub update: Option<Update>,
    /// What happens where a step's loss or gradients are not finite.
    pub on_nonfinite: Option<OnNonFinite>,
    /// Random data of the same shape.
    pub synthetic: bool,
    /// Folder of the data's files.
    pub data_dir: Option<PathBuf>,
}

impl From<&ReplaceArgs> for Overrides {
    fn from(args: &ReplaceArgs) -> Self {
        Self {
            batch: args.batch,
            dtype: args.dtype,
            update: args.update,
            depth: args.depth,
            width: args.width,
            synthetic: args.data.is_some(),
            data_dir: args.data_dir.clone(),
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
    let mut root = Section::new(table.get_ref(), within(0..1, text), "the config");
    let data_node = root.require("data")?;
    let model_node = root.require("model")?;
    let train_node = root.get("train");
    let run_node = root.get("run");
    root.finish()?;

    let mut section = data_node.section("[data]")?;
    let mut data = data::read(&mut section, base)?;
    section.finish()?;

    let mut section = model_node.section("[model]")?;
    let list = section.require("layers")?;
    let layers = replace_sizes(Layers::read(&list, data.source.vocab())?, overrides)?;
    let input = input(section.get("input").as_ref(), &data.source)?;
    section.finish()?;
    replace_data(&mut data.source, &input, overrides)?;

    let target = data.source.target();
    let nothing = DeTable::new();
    let absent = |name| Section::new(&nothing, 0..0, name);
    let mut section = match train_node {
        Some(node) => node.section("[train]")?,
        None => absent("[train]"),
    };
    let mut training = training::read(&mut section, target)?;
    section.finish()?;
    replace_numbers(&mut training, overrides)?;

    let mut section = match run_node {
        Some(node) => node.section("[run]")?,
        None => absent("[run]"),
    };
    let run = run::read(&mut section, base)?;
    section.finish()?;

    let model = ModelSpec {
        input,
        layers: layers.specs.clone(),
    };
    let shape = model
        .infer()
        .map_err(|error| misfit(&error, &layers, &list))?;
    let last = layers.places.last().map_or(&list.span, |place| &place.span);
    check_output(shape.output(), target, last.clone())?;
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
    pub fn count(&self, typed: Option<CountChoice>) -> Count {
        typed.map(Into::into).or(self.run.count).unwrap_or_default()
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

/// The model's input: the data's shape, unless the config knows better about images of another size.
fn input(stated: Option<&Node<'_>>, source: &Source) -> Result<SampleShape, Problem> {
    let from_data = source.sample_shape();
    let Some(node) = stated else {
        return Ok(from_data);
    };
    let dims = node.sizes()?;
    let fits = match source {
        Source::Mnist { .. } => matches!(dims[..], [1, _, _]),
        _ => dims == from_data.dims,
    };
    if !fits {
        let wanted = match source {
            Source::Mnist { .. } => "[1, rows, columns], as IDX images have it".to_owned(),
            _ => format!("{:?}, the shape of the data's samples", from_data.dims),
        };
        return Err(node
            .problem(&wanted)
            .help("leave `input` out: it follows from the data"));
    }
    Ok(SampleShape {
        kind: from_data.kind,
        dims,
    })
}

fn replace_sizes(mut layers: Layers, overrides: &Overrides) -> Result<Layers, Mistake> {
    let refused =
        |name: &str, why: &str| Mistake::Arguments(format!("`--{name}` was given, but {why}"));
    if let Some(width) = overrides.width {
        let from = vary::width(&layers.specs)
            .ok_or_else(|| refused("width", "the model has no hidden linear or conv2d layer"))?;
        layers.specs = vary::widened(&layers.specs, from, not_zero("width", width)?);
    }
    match overrides.depth {
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
    if overrides.synthetic {
        *source = source.synthetic_like();
        if let Source::Synthetic { shape, .. } = source {
            shape.clone_from(&input.dims);
        }
    }
    if let Some(folder) = &overrides.data_dir {
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
    training.batch = size("batch", overrides.batch, training.batch)?;
    if !training.batch.is_multiple_of(training.accumulate) {
        return Err(Mistake::Arguments(format!(
            "`--batch` is {}, but the config runs a batch in {} equal parts (`accumulate`)",
            training.batch, training.accumulate
        )));
    }
    training.steps = size("steps", overrides.steps, training.steps)?;
    training.seed = overrides.seed.unwrap_or(training.seed);
    training.dtype = overrides.dtype.unwrap_or(training.dtype);
    training.update = overrides.update.unwrap_or(training.update);
    training.on_nonfinite = overrides.on_nonfinite.unwrap_or(training.on_nonfinite);
    Ok(())
}

fn misfit(error: &ShapeError, layers: &Layers, list: &Node<'_>) -> Problem {
    let span = layers
        .place(&error.path)
        .map_or_else(|| list.span.clone(), |place| place.span.clone());
    Problem::new(error.to_string(), format!("gets {}", error.got), span)
}

/// Every loss wants one row of numbers, long enough for the target.
fn check_output(
    output: &SampleShape,
    target: TargetKind,
    last: Range<usize>,
) -> Result<(), Problem> {
    let (fits, wanted) = match target {
        TargetKind::Classes(classes) => (
            matches!(output.dims[..], [width] if width >= classes),
            format!(
                "cross_entropy wants one number for each of the data's {classes} classes: [{classes}]"
            ),
        ),
        TargetKind::Values(values) => (
            output.dims == [values],
            format!(
                "mean_squared_error wants as many numbers as the data's targets have: [{values}]"
            ),
        ),
    };
    if fits && output.kind == ElementKind::Float {
        return Ok(());
    }
    let width = match target {
        TargetKind::Classes(width) | TargetKind::Values(width) => width,
    };
    let flatten = if output.dims.len() > 1 {
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

/// A place that the text has: an error at its very end points past it.
fn within(span: Range<usize>, text: &str) -> Range<usize> {
    let end = span.end.min(text.len());
    span.start.min(end)..end
}

#[cfg(test)]
mod tests;
