//! How a run or a sweep was started, kept in its folder as `command.json`; `config.toml` beside it is the whole config of a run,
//! with which `train --resume RUN_DIR` continues.

use std::{
    env,
    path::{Path, PathBuf},
    time::SystemTime,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    args::line,
    exit,
    failure::{Failure, Outcome},
    input, output,
};

/// How a run or a sweep was started, in its folder.
pub const COMMAND: &str = "command.json";
/// What to do where it cannot be had.
const NAMED: &str = "it holds no run, or one of an older version: `rekindle train CONFIG --resume RUN_DIR` continues that";
/// The config of a run, with all that was typed beside it.
pub const CONFIG: &str = "config.toml";
/// Format tag of [`Started`].
pub const COMMAND_FORMAT: &str = "rekindle-command/2";

/// The command line, and where it was typed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Started {
    format: String,
    /// The config's file, as it was named.
    pub config: String,
    /// The weights that it started from, if it did not make its own.
    pub weights: Option<PathBuf>,
    /// The working directory.
    pub directory: PathBuf,
    /// The arguments after `rekindle`.
    pub arguments: Vec<String>,
    /// When it was started, by the machine's clock, in RFC 3339.
    pub started_at: String,
    /// The version of `rekindle`.
    pub version: String,
}

impl Started {
    /// The command line of this process, with the config and the weights that it names.
    pub fn now(config: String, weights: Option<&Path>) -> Result<Self, Failure> {
        let directory = env::current_dir().map_err(Failure::other)?;
        Ok(Self {
            format: COMMAND_FORMAT.into(),
            config,
            weights: weights.map(|weights| directory.join(weights)),
            directory,
            arguments: env::args_os()
                .skip(1)
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            started_at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }

    /// Writes it to a run's folder.
    pub fn keep(&self, folder: &Path) -> Outcome {
        output::json_file(&folder.join(COMMAND), self)
    }

    /// The command line as one line for a shell.
    pub fn line(&self) -> String {
        line(&self.arguments)
    }

    /// The command line of the run in this folder.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let (path, shown) = (folder.join(COMMAND), folder.display());
        if !folder.exists() {
            let message = format!("{shown}: no such folder");
            return Err(Failure::coded(exit::FILE_REFUSED, message));
        }
        let read = match folder.is_dir() && !path.exists() {
            true => Err(Failure::usage(format!(
                "{shown}: there is no `{COMMAND}` in this folder"
            ))),
            false => {
                input::kept(&path).and_then(|text| input::document(&path, &text, COMMAND_FORMAT))
            }
        };
        read.map_err(|failure| failure.help(NAMED))
    }
}

/// The file of the whole config of the run in this folder.
pub fn config_of(folder: &Path) -> Result<PathBuf, Failure> {
    let config = folder.join(CONFIG);
    if config.exists() {
        return input::kept(&config).map(|_| config);
    }
    let shown = folder.display();
    let message = format!("{shown}: there is no `{CONFIG}` in this folder");
    Err(Failure::coded(exit::FILE_REFUSED, message).help(
        "it is no run of this program, or damaged: start a new run in another folder, or name the config (`rekindle train CONFIG --resume RUN_DIR`)",
    ))
}

/// Refuses the folder of a new run where a config stands that is no run's: it would be replaced.
pub fn check_new(folder: &Path) -> Outcome {
    let config = folder.join(CONFIG);
    if config.exists() && !folder.join(COMMAND).exists() {
        return Err(Failure::usage(format!(
            "{}: the run's own config would replace this file; name another folder",
            config.display()
        )));
    }
    Ok(())
}
