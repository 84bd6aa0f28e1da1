//! What ends a command early: an exit code, and a report that says what, where and how to fix it.

use std::fmt::Display;

use miette::{Report, miette};
use rekindle::{
    data::{DataError, error::Blame},
    train::session::RunError,
};
use rekindle_plan::PlanError;

use crate::exit;

/// An exit code and a report for people.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: i32,
    /// The report.
    pub report: Report,
}

/// What a command gives.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// Bad usage, or a file whose content is wrong.
    pub fn usage(message: impl Display) -> Self {
        Self {
            code: exit::USAGE,
            report: miette!("{message}"),
        }
    }

    /// The system refused a file.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self {
            code: exit::FILE_REFUSED,
            report: miette!("{}: {error}", path.display()),
        }
    }

    /// Anything that has no code of its own.
    pub fn other(message: impl Display) -> Self {
        Self {
            code: exit::OTHER,
            report: miette!("{message}"),
        }
    }

    /// The same with a code and help of its own.
    pub fn with_help(code: i32, message: impl Display, help: impl Display) -> Self {
        Self {
            code,
            report: miette!(help = help.to_string(), "{message}"),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let code = if error.blame() == Blame::System {
            exit::FILE_REFUSED
        } else {
            exit::USAGE
        };
        Self {
            code,
            report: miette!("{error}"),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match &error {
            PlanError::Infeasible {
                smallest_of_all: smallest,
                ..
            } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!(
                    "the smallest budget that would do is {smallest}: `--budget {}B`",
                    smallest.0
                ),
            ),
            _ => Self::usage(error),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Data(error) => error.into(),
            RunError::Plan(error) => error.into(),
            RunError::Shape(_) | RunError::Schedule(_) | RunError::Device(_) => Self::usage(error),
            RunError::Build(_) | RunError::Train(_) => Self::other(error),
        }
    }
}

/// Turns a panic into one paragraph: it is a bug of ours, and the user should be told so in words.
pub fn report_panics_as_bugs() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            default(panic);
        }
        let message = panic
            .payload_as_str()
            .unwrap_or("no message")
            .lines()
            .next()
            .unwrap_or_default();
        let place = panic
            .location()
            .map(|place| format!(" at {}:{}", place.file(), place.line()))
            .unwrap_or_default();
        eprintln!(
            "rekindle: this is a bug, please report it with the command that you ran ({message}{place}; \
             RUST_BACKTRACE=1 shows more)"
        );
        std::process::exit(exit::OTHER);
    }));
}
