//! The command line of a run or a sweep, kept in its folder as `command.json`: `train --resume RUN_DIR` continues with it.

use std::{
    borrow::Cow,
    env,
    path::{Path, PathBuf},
    time::SystemTime,
};

use clap::Parser;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    args::{Cli, Command, ScheduleArgs, TrainArgs},
    config::RunKeys,
    exit,
    failure::{Failure, Outcome},
    input, output,
};

const FILE: &str = "command.json";
/// Format tag of [`Started`].
pub const COMMAND_FORMAT: &str = "rekindle-command/1";

/// The command line, and where it was typed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Started {
    format: String,
    /// The working directory.
    directory: PathBuf,
    /// The arguments after `rekindle`.
    arguments: Vec<String>,
    /// When it was started, by the machine's clock, in RFC 3339.
    #[serde(default)]
    started_at: Option<String>,
    /// The version of `rekindle`.
    #[serde(default)]
    version: Option<String>,
}

impl Started {
    /// The command line of this process.
    pub fn now() -> Result<Self, Failure> {
        Ok(Self {
            format: COMMAND_FORMAT.into(),
            directory: env::current_dir().map_err(Failure::other)?,
            arguments: env::args_os()
                .skip(1)
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            started_at: Some(humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
            version: Some(env!("CARGO_PKG_VERSION").into()),
        })
    }

    /// Writes it to a run's folder.
    pub fn keep(&self, folder: &Path) -> Outcome {
        output::json_file(&folder.join(FILE), self)
    }

    /// The command line as one line for a shell.
    pub fn line(&self) -> String {
        line(&self.arguments)
    }

    /// When it was typed, and the version that ran.
    pub fn at(&self) -> Option<(&str, &str)> {
        Some((self.started_at.as_deref()?, self.version.as_deref()?))
    }

    /// The command line of the run in this folder.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(FILE);
        if folder.is_dir() && !path.exists() {
            return Err(Failure::usage(format!(
                "{}: does not say what its run was started with: name the CONFIG as well",
                folder.display()
            )));
        }
        input::document(&path, COMMAND_FORMAT)
    }

    /// The file of what the run's steps allocate and free, if it has one.
    pub fn track(&self, folder: &Path) -> Option<PathBuf> {
        let args = self.clone().arguments(folder).ok()?;
        args.track.filter(|path| path.exists())
    }

    /// The arguments, paths made independent of where this process runs.
    fn arguments(self, folder: &Path) -> Result<TrainArgs, Failure> {
        let typed = std::iter::once("rekindle".to_owned()).chain(self.arguments);
        let wrong = |what: &dyn std::fmt::Display| {
            Failure::with_help(
                exit::USAGE,
                format!("{}: {what}", folder.join(FILE).display()),
                "name the CONFIG, and options that are to hold, as well as --resume RUN_DIR",
            )
        };
        let cli = Cli::try_parse_from(typed).map_err(|error| wrong(&error))?;
        let Command::Train(mut args) = cli.command else {
            return Err(wrong(&"holds another command than `train`"));
        };
        let paths = [
            &mut args.config,
            &mut args.replace.data_dir,
            &mut args.plan,
            &mut args.weights,
            &mut args.track,
        ];
        for path in paths.into_iter().flatten() {
            *path = self.directory.join(&*path);
        }
        Ok(*args)
    }
}

/// A command of this program, quoted for a shell.
pub fn line(arguments: &[String]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| quoted(word)).collect();
    format!("rekindle {}", words.join(" "))
}

/// A word quoted for a shell if necessary: `80%` is unchanged.
fn quoted(word: &str) -> Cow<'_, str> {
    match word.strip_suffix('%') {
        Some(number) if number.parse::<f64>().is_ok() => word.into(),
        _ => shell_words::quote(word),
    }
}

/// The arguments of a training: for a run that is resumed without a config, those of its start, overridden by the
/// arguments typed now.
pub fn resolved(typed: TrainArgs) -> Result<TrainArgs, Failure> {
    let (None, Some(folder)) = (&typed.config, &typed.resume) else {
        return Ok(typed);
    };
    let mut before = Started::read(folder)?.arguments(folder)?;
    let schedule = RunKeys {
        segments: before.schedule.segments,
        budget: before.schedule.budget,
        plan: before.plan.take(),
        planner: before.schedule.planner,
        ..RunKeys::default()
    };
    let schedule = schedule.replaced(&typed.schedule, typed.plan.as_deref());
    // Do not write the same outputs again; a new data path replaces the old one.
    (before.output, before.track) = (None, None);
    if typed.replace.data.is_some() || typed.replace.data_dir.is_some() {
        (before.replace.data, before.replace.data_dir) = (None, None);
    }
    let no_master_weights = typed.replace.no_master_weights || before.replace.no_master_weights;
    let [typed, before] = [typed, before].map(serde_json::to_value);
    let both = completed(
        typed.map_err(Failure::other)?,
        before.map_err(Failure::other)?,
    );
    let mut args: TrainArgs = serde_json::from_value(both).map_err(Failure::other)?;
    args.replace.no_master_weights = no_master_weights;
    args.plan = schedule.plan;
    args.schedule = ScheduleArgs {
        segments: schedule.segments,
        budget: schedule.budget,
        planner: schedule.planner,
    };
    Ok(args)
}

/// The typed arguments, with missing ones taken from before. Flags are only those typed now.
fn completed(typed: Value, before: Value) -> Value {
    match (typed, before) {
        (Value::Null, before) => before,
        (Value::Object(mut typed), Value::Object(before)) => {
            for (name, before) in before {
                let own = typed.remove(&name).unwrap_or_default();
                typed.insert(name, completed(own, before));
            }
            Value::Object(typed)
        }
        (typed, _) => typed,
    }
}
