//! How a command ends: what people are told of a failure, and its JSON document.

use std::env;

use miette::{SourceCode, SourceSpan};
use rekindle_train::device::seal_kernels;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Failure, InfeasibleDocument, Outcome};
use crate::{exit, output};

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
        Self {
            format: ERROR_FORMAT.into(),
            error: failure.message.clone(),
            exit_code: failure.code,
            help: failure.help.clone(),
            place: failure.place(),
        }
    }
}

impl ErrorDocument {
    /// The failure that it tells of, without its place.
    pub fn failure(&self) -> Failure {
        Failure {
            help: self.help.clone(),
            ..Failure::coded(self.exit_code, &self.error)
        }
    }
}

/// Ends the process.
pub fn end(outcome: Outcome) -> ! {
    let code = match outcome {
        Ok(()) => exit::DONE,
        Err(failure) => {
            failure.tell();
            failure.code
        }
    };
    seal_kernels();
    std::process::exit(code);
}

/// The document of arguments that clap rejects, with clap's message.
pub fn write_usage(error: &clap::Error) {
    let text = error.to_string();
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let failure = Failure::usage(message.trim_start_matches("error: ").trim());
    let failure = match rest.trim() {
        "" => failure,
        help => failure.help(help),
    };
    write_document(&ErrorDocument::from(&failure));
}

fn write_document(document: &impl Serialize) {
    let asked = env::args_os().any(|argument| argument == "--json");
    if asked && !output::wrote_document() {
        // The report is on standard error in any case.
        let _ = output::json(document);
    }
}

impl Failure {
    /// Says why a command failed: for people, and as JSON where that was asked for and the command wrote no
    /// document of its own.
    pub fn tell(&self) {
        complain!("{:?}", self.report());
        match &self.infeasible {
            Some(infeasible) => write_document(&InfeasibleDocument::from(&**infeasible)),
            None => write_document(&ErrorDocument::from(self)),
        }
    }

    fn place(&self) -> Option<ConfigPlace> {
        let span = SourceSpan::from(self.span.clone()?);
        let contents = self.source.as_ref()?.read_span(&span, 0, 0).ok()?;
        Some(ConfigPlace {
            file: contents.name()?.to_owned(),
            line: contents.line() + 1,
            column: contents.column() + 1,
        })
    }
}
