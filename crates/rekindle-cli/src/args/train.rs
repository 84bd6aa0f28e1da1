//! Arguments of `train`, and how arguments are typed.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use clap::{ArgGroup, Args};
use rekindle::size::Size;
use rekindle_train::settings::OnNonFinite;
use serde::Serialize;
use serde_json::Value;

use super::{ConfigArgs, MeasureArgs, ReplaceArgs, ScheduleArgs, shared::word};
use crate::failure::Failure;

#[derive(Debug, Clone, Default, Args, Serialize)]
#[command(
    after_help = "Examples:\n  rekindle train configs/deep-linear.toml\n  rekindle train configs/deep-linear.toml --budget 60MiB -o runs/first\n  rekindle train configs/deep-linear.toml --segments 8 --compare\n  rekindle train --resume runs/first --budget 80MiB"
)]
#[command(group = ArgGroup::new("given").args(["segments", "budget", "plan"]))]
pub struct TrainArgs {
    /// The TOML file that describes model, data and training; not needed with --resume
    #[arg(value_name = "CONFIG", required_unless_present = "resume")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub replace: ReplaceArgs,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Use the schedule in FILE, written by `rekindle plan -o`
    #[arg(long, value_name = "FILE", conflicts_with = "planner")]
    pub plan: Option<PathBuf>,
    /// Optimizer steps (the config's if not given)
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<usize>,
    /// Seed of weights, shuffling and random layers (the config's if not given)
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Write the tensors that each pass of the first three steps makes and frees to FILE (JSON lines)
    #[arg(long, value_name = "FILE", help_heading = "Output and checks")]
    pub track: Option<PathBuf>,
    /// What to do if a loss or gradient is not finite: stop (the default), skip the update, or continue
    #[arg(
        long,
        value_name = "WHAT",
        help_heading = "Training",
        value_parser = word::<OnNonFinite>()
    )]
    pub on_nonfinite: Option<OnNonFinite>,
    /// Measure plain steps too, in turns with steps of the run. On the CPU, long runs do so without being asked
    #[arg(long, help_heading = "Output and checks")]
    pub compare: bool,
    /// Leave evaluations out
    #[arg(long, hide = true)]
    pub no_eval: bool,
    /// Start from the weights in FILE (safetensors, such as a run's `weights.safetensors`)
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "resume",
        help_heading = "Training"
    )]
    pub weights: Option<PathBuf>,
    /// Write the run's record, history, snapshots and weights to this new folder
    #[arg(short, long, value_name = "RUN_DIR", help_heading = "Run folder")]
    pub output: Option<PathBuf>,
    /// Resume the run in this folder from its newest intact snapshot. The schedule and the device may differ, and the number
    /// of steps if the learning rate does not depend on it
    #[arg(
        long,
        value_name = "RUN_DIR",
        conflicts_with = "output",
        help_heading = "Run folder"
    )]
    pub resume: Option<PathBuf>,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output and checks")]
    pub json: bool,
}

impl TrainArgs {
    /// The config's path; empty if there is none.
    pub fn config_path(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(""))
    }

    /// The command line, as it is typed.
    pub fn typed(&self) -> Result<String, Failure> {
        words("train", self).map(|words| line(&words))
    }
}

impl ConfigArgs {
    /// The training of this config that answers in JSON.
    pub fn training(&self, measure: MeasureArgs) -> TrainArgs {
        TrainArgs {
            config: Some(self.config.clone()),
            replace: self.replace.clone(),
            measure,
            json: true,
            ..TrainArgs::default()
        }
    }
}

/// The command line of a command with these arguments, as it is typed.
pub fn words(command: &str, args: &impl Serialize) -> Result<Vec<String>, Failure> {
    let mut words = vec![command.to_owned()];
    let fields = serde_json::to_value(args).map_err(Failure::other)?;
    add_typed(&mut words, &fields);
    Ok(words)
}

/// Fields are called what their options are called.
fn add_typed(words: &mut Vec<String>, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        let option = format!("--{}", name.replace('_', "-"));
        match value {
            Value::Bool(true) => words.push(option),
            Value::String(word) if name == "config" => words.push(word.clone()),
            Value::String(word) => words.extend([option, word.clone()]),
            Value::Number(number) => words.extend([option, number.to_string()]),
            _ => add_typed(words, value),
        }
    }
}

/// A command of this program as a shell takes it.
pub fn line(arguments: &[String]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| quoted(word)).collect();
    format!("rekindle {}", words.join(" "))
}

/// A word as a shell takes it: `50%` as it is.
fn quoted(word: &str) -> Cow<'_, str> {
    match word.parse::<Size>() {
        Ok(_) => word.into(),
        Err(_) => shell_words::quote(word),
    }
}
