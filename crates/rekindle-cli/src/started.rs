//! The command line of a run or a sweep, kept in its folder as `command.json`: `train --resume RUN_DIR` continues with it.

use std::{
    env,
    path::{Path, PathBuf},
    time::SystemTime,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    exit,
    failure::{Failure, Outcome},
    input, output,
    shell::line,
};

pub const FILE: &str = "command.json";
/// Format tag of [`Started`].
pub const COMMAND_FORMAT: &str = "rekindle-command/1";

/// The command line, and where it was typed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Started {
    format: String,
    /// The working directory.
    pub directory: PathBuf,
    /// The arguments after `rekindle`.
    pub arguments: Vec<String>,
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
            return Err(Failure::with_help(
                exit::USAGE,
                format!("{}: there is no `{FILE}` in this folder", folder.display()),
                "it holds no run, or one of an older version: `rekindle train CONFIG --resume RUN_DIR` continues that",
            ));
        }
        if !folder.exists() {
            let message = format!("{}: no such folder", folder.display());
            return Err(Failure::coded(exit::FILE_REFUSED, message));
        }
        input::document(&path, COMMAND_FORMAT)
    }
}
