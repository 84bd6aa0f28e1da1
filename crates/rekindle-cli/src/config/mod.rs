//! A run's configuration: the TOML file, read and checked, with the command line's arguments applied.
//!
//! | module | what it owns |
//! |---|---|
//! | [`ConfigFile`] | what serde reads |
//! | [`problem`] | what is wrong, and where |
//! | [`depth`] | the depth of a model |
//! | [`data`], [`run`] | `[data]`, `[run]` |
//!
//! A key is defined with its value's type: in `rekindle-train`'s `data::settings`, `model::spec` and `settings`, and
//! here in [`run`]. `docs/schema/config.json` is written from these types; `docs/config.md` describes the keys.
//!
//! A [`Config`] is consistent: shapes fit from layer to layer, the output fits the loss, the loss fits the data.

mod data;
pub mod depth;
mod problem;
mod run;

use std::path::Path;

use rekindle::{meter::Count, record::Kernels};
use rekindle_train::{
    Estimated,
    chunks::check_loss_chunks,
    data::{Split, TargetKind, settings::Source},
    invalid::Invalid,
    model::{
        shape::ModelShape,
        spec::{LayerSpec, ModelSpec, SampleShape},
    },
    settings::TrainSettings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::problem::layer_key;
pub use self::run::RunKeys;
use crate::{args::TrainArgs, device::DeviceChoice, failure::Failure};

/// A rekindle config: a model, its data, how it is trained and how it is run.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields)]
#[schemars(title = "rekindle config")]
pub struct ConfigFile {
    /// Where samples come from: one source. Relative paths start at the config's folder.
    pub data: Source,
    /// The model.
    pub model: ModelKeys,
    /// How the model is trained.
    #[serde(default)]
    pub train: TrainSettings,
    /// How the schedule is found, and the device. At most one of `segments`, `budget` and `plan` may be given.
    #[serde(default)]
    pub run: RunKeys,
}

/// The model.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields)]
pub struct ModelKeys {
    /// Shape of one sample without the batch dimension. Not set, it is the data's.
    pub input: Option<Vec<usize>>,
    /// The layers in order.
    pub layers: Vec<LayerSpec>,
}

impl ConfigFile {
    /// Checks what the types leave open: ranges, and keys that exclude each other. Returns the section of what is wrong.
    fn validate(&self) -> Result<(), (&'static str, Invalid)> {
        self.data.validate().map_err(|invalid| ("data", invalid))?;
        let train = self.train.validate();
        train.map_err(|invalid| ("train", invalid))?;
        self.run.validate().map_err(|invalid| ("run", invalid))
    }
}

/// Everything that decides a run.
#[derive(Debug)]
pub struct Config {
    /// The model.
    pub model: ModelSpec,
    /// Its layers as they are written, groups not unfolded.
    pub written: Vec<LayerSpec>,
    /// Shapes of its activations.
    pub shape: ModelShape,
    /// Where samples come from.
    pub data: Source,
    /// How the model is trained, all defaults written out.
    pub training: TrainSettings,
    /// How it is cut, and where it runs.
    pub run: RunKeys,
}

/// Reads the config of a training, with what is typed beside it, and checks all that can be checked without opening the data.
pub fn load(typed: &TrainArgs) -> Result<Config, Failure> {
    let path = typed.config_path();
    let text = crate::input::text(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(&text, base, typed).map_err(|problem| problem.in_config(path, &text))
}

fn parse(text: &str, base: &Path, typed: &TrainArgs) -> Result<Config, Failure> {
    let file: ConfigFile = toml::from_str(text).map_err(|error| problem::of_toml(&error, text))?;
    file.validate().map_err(|(section, invalid)| {
        problem::at(text, &format!("{section}.{}", invalid.key), &invalid)
    })?;
    let ConfigFile {
        mut data,
        model,
        mut train,
        mut run,
    } = file;

    data::start_at(base, &mut data);
    run.plan = run.plan.map(|plan| base.join(plan));
    let run = run.replaced(typed);
    let input = input(model.input, &data).map_err(|why| {
        let help = "leave `input` out: it follows from the data";
        problem::at(text, "model.input", why).help(help)
    })?;
    replace_data(&mut data, &input, typed)?;
    replace_numbers(&mut train, typed)?;

    let (written, mut layers) = layers(text, model.layers, typed)?;
    let misfit =
        |message: String, path: &[usize]| problem::at(text, &layer_key(&written, path), message);
    if let Some(vocab) = data.vocab() {
        count_ids(&mut layers, vocab).map_err(|why| misfit(why, &[0]))?;
    }
    let model = ModelSpec { input, layers };
    let shape = model
        .infer()
        .map_err(|error| misfit(error.to_string(), &error.path))?;
    let target = data.target();
    check_output(&shape, target)
        .map_err(|(why, help)| misfit(why, &[model.layers.len() - 1]).help(help))?;
    check_loss_chunks(&train, &model, target).map_err(|refused| {
        match typed.replace.loss_chunks {
            None => problem::at(text, "train.loss_chunks", refused),
            Some(_) => Failure::usage(refused),
        }
    })?;
    Ok(Config {
        model,
        written,
        shape,
        data,
        training: train.resolved(),
        run,
    })
}

impl Config {
    /// Which bytes a budget bounds.
    pub fn count(&self) -> Count {
        self.run.count.unwrap_or_default()
    }

    /// The device that is asked for.
    pub fn device(&self) -> DeviceChoice {
        self.run.device.unwrap_or_default()
    }

    /// The same as a config file, with all that was typed beside it. It may stand anywhere: paths start at `base`.
    pub fn whole(&self, base: &Path) -> Result<String, Failure> {
        let (mut data, mut run) = (self.data.clone(), self.run.clone());
        data::start_at(base, &mut data);
        run.plan = run.plan.map(|plan| base.join(plan));
        let file = ConfigFile {
            data,
            model: ModelKeys {
                input: Some(self.model.input.dims.clone()),
                layers: self.written.clone(),
            },
            train: self.training.clone(),
            run,
        };
        toml::to_string(&file).map_err(Failure::other)
    }

    /// A step of this model with other settings, to be estimated.
    pub fn estimated<'a>(&'a self, settings: &'a TrainSettings, kernels: Kernels) -> Estimated<'a> {
        Estimated {
            model: &self.model,
            settings,
            target: self.data.target(),
            ranks: 1,
            kernels,
            process: None,
        }
    }

    /// The data as a training's process holds it, where it is there and is not a pipe, which can be read only once.
    pub fn data_again(&self) -> Option<Split> {
        let mut source = self.data.clone();
        let mut paths = data::paths(&mut source).iter();
        let lasts = paths.all(|path| path.is_file() || path.is_dir());
        lasts.then(|| self.open_data().ok())?
    }

    /// Opens the data and checks that the model takes its samples.
    pub fn open_data(&self) -> Result<Split, Failure> {
        let split =
            rekindle_train::data::open(&self.data, self.training.eval_split, self.training.seed)
                .map_err(|error| data::failure(error, &self.data))?;
        let (found, wanted) = (split.train.sample_shape(), &self.model.input);
        if found == *wanted {
            return Ok(split);
        }
        let message = format!("a sample of the data is {found}, but the model takes {wanted}");
        Err(Failure::usage(message).help(format!("set `input = {:?}` in [model]", found.dims)))
    }
}

fn replace_data(
    source: &mut Source,
    input: &SampleShape,
    typed: &TrainArgs,
) -> Result<(), Failure> {
    if typed.replace.data.is_some() {
        *source = source.synthetic_like();
        if let Source::Synthetic { shape, .. } = source {
            shape.clone_from(&input.dims);
        }
    }
    if let Some(folder) = &typed.replace.data_dir {
        *source = data::in_folder(source, folder).ok_or_else(|| {
            Failure::usage("`--data-dir` was given, but synthetic data has no files: leave it out")
        })?;
    }
    Ok(())
}

fn replace_numbers(training: &mut TrainSettings, typed: &TrainArgs) -> Result<(), Failure> {
    let replace = &typed.replace;
    training.batch = replace.batch.unwrap_or(training.batch);
    training.accumulate = replace.accumulate.unwrap_or(training.accumulate);
    training.steps = typed.steps.unwrap_or(training.steps);
    training.seed = typed.seed.unwrap_or(training.seed);
    training.dtype = replace.dtype.unwrap_or(training.dtype);
    training.update = replace.update.unwrap_or(training.update);
    training.loss_chunks = replace.loss_chunks.unwrap_or(training.loss_chunks);
    training.on_nonfinite = typed.on_nonfinite.unwrap_or(training.on_nonfinite);
    let state = replace.optimizer_state;
    training.optimizer_state = state.unwrap_or(training.optimizer_state);
    training.validate().map_err(Failure::usage)
}

/// The model's input: the data's shape, unless the config sets another image size.
fn input(stated: Option<Vec<usize>>, source: &Source) -> Result<SampleShape, String> {
    let shape = source.sample_shape();
    let Some(dims) = stated else {
        return Ok(shape);
    };
    let (fits, wanted) = match source {
        Source::Mnist { .. } => (
            matches!(dims[..], [1, rows, columns] if rows > 0 && columns > 0),
            "[1, rows, columns], as IDX images have it".to_owned(),
        ),
        _ => (
            dims == shape.dims,
            format!("{:?}, the shape of the data's samples", shape.dims),
        ),
    };
    if fits {
        Ok(SampleShape { dims, ..shape })
    } else {
        Err(format!("`input` must be {wanted}"))
    }
}

/// The layers as the file has them, with the depth that was typed, and the same unfolded.
fn layers(
    text: &str,
    written: Vec<LayerSpec>,
    typed: &TrainArgs,
) -> Result<(Vec<LayerSpec>, Vec<LayerSpec>), Failure> {
    let misfit =
        |(item, why): (usize, String)| problem::at(text, &format!("model.layers.{item}"), why);
    let unfolded = depth::unfolded(&written).map_err(misfit)?;
    let Some(depth) = typed.replace.depth else {
        return Ok((written, unfolded));
    };
    let refused = |why: &str| Failure::usage(format!("`--depth {depth}`: {why}"));
    let deeper = depth::deepened(&written, depth);
    let deeper = deeper.ok_or_else(|| refused("`layers` has no `repeat`"))?;
    let unfolded = depth::unfolded(&deeper).map_err(|(_, why)| refused(&why))?;
    Ok((deeper, unfolded))
}

/// Writes out the number of token ids where the embedding, which is the first layer, leaves it out, and checks it where it
/// says it.
fn count_ids(layers: &mut [LayerSpec], needed: usize) -> Result<(), String> {
    match layers.first_mut() {
        Some(LayerSpec::Embedding { vocab, .. }) if *vocab == 0 => *vocab = needed,
        Some(LayerSpec::Embedding { vocab, .. }) if *vocab < needed => {
            return Err(format!(
                "`vocab` is {vocab}, but must be at least {needed}: the data has ids below that"
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Every loss requires one row of numbers, long enough for the target, or one row for each of a sample's tokens. The error is
/// what is wrong, and what to do.
fn check_output(shape: &ModelShape, target: TargetKind) -> Result<(), (String, String)> {
    let output = shape.output();
    let tokens: usize = shape.input.dims.iter().product();
    let (fits, width, wanted) = match target {
        TargetKind::Classes(classes) => (
            matches!(output.dims[..], [width] if width >= classes),
            classes,
            format!(
                "cross entropy needs one number for each of the data's {classes} classes: [{classes}]"
            ),
        ),
        TargetKind::TokenClasses(classes) => (
            matches!(output.dims[..], [length, width] if length == tokens && width >= classes),
            classes,
            format!(
                "cross entropy needs one number for each of the data's {classes} classes, of each of a sample's {tokens} token ids: \
                 [{tokens}, {classes}]"
            ),
        ),
        TargetKind::Values(values) => (
            output.dims == [values],
            values,
            format!("squared error needs as many numbers as the data's targets have: [{values}]"),
        ),
    };
    if fits {
        return Ok(());
    }
    let flatten = if output.dims.len() > 1 && !matches!(target, TargetKind::TokenClasses(_)) {
        "\"flatten\", "
    } else {
        ""
    };
    let help = format!("end with {flatten}{{ linear = {{ out = {width} }} }}");
    Err((format!("the model gives {output}, but {wanted}"), help))
}

#[cfg(test)]
mod tests;
