//! The JSON document of a failed command.

use std::env;

use miette::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{exit, failure::Failure, output};

/// Format tag of [`ErrorDocument`].
pub const ERROR_FORMAT: &str = "rekindle-error/1";

/// In place of a command's document, where there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDocument {
    format: String,
    /// What is wrong.
    pub error: String,
    /// The command's exit code.
    pub exit_code: i32,
    /// What to do; `null` where the message says it all.
    help: Option<String>,
    /// The place in a config; `null` for other errors.
    place: Option<ConfigPlace>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct ConfigPlace {
    /// The config's file, as it was named.
    file: String,
    /// Line, from 1.
    line: usize,
    /// Column in this line, from 1.
    column: usize,
}

impl From<&Failure> for ErrorDocument {
    fn from(failure: &Failure) -> Self {
        let report = &failure.report;
        Self {
            format: ERROR_FORMAT.into(),
            error: report.to_string(),
            exit_code: failure.code,
            help: report.help().map(|help| help.to_string()),
            place: place(report),
        }
    }
}

impl ErrorDocument {
    /// The failure that it tells of, without its place.
    pub fn failure(&self) -> Failure {
        match &self.help {
            Some(help) => Failure::with_help(self.exit_code, &self.error, help),
            None => Failure::coded(self.exit_code, &self.error),
        }
    }
}

/// Writes the document of a failure, if JSON was asked for and the command wrote no document of its own.
pub fn write(failure: &Failure) {
    write_document(&ErrorDocument::from(failure));
}

/// The same for arguments that clap rejects, with clap's message.
pub fn write_usage(error: &clap::Error) {
    let text = error.to_string();
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let rest = rest.trim();
    write_document(&ErrorDocument {
        format: ERROR_FORMAT.into(),
        error: message.trim_start_matches("error: ").trim().to_owned(),
        exit_code: exit::USAGE,
        help: (!rest.is_empty()).then(|| rest.to_owned()),
        place: None,
    });
}

fn write_document(document: &ErrorDocument) {
    let asked = env::args_os().any(|argument| argument == "--json");
    if asked && !output::wrote_document() {
        // The report is on standard error in any case.
        let _ = output::json(document);
    }
}

fn place(report: &Report) -> Option<ConfigPlace> {
    let label = report.labels()?.next()?;
    let contents = report.source_code()?.read_span(label.inner(), 0, 0).ok()?;
    Some(ConfigPlace {
        file: contents.name()?.to_owned(),
        line: contents.line() + 1,
        column: contents.column() + 1,
    })
}
