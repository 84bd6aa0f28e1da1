//! The JSON documents of failed commands.

use std::{env, fmt};

use miette::{SourceCode, SourceSpan};
use rekindle_plan::{Bytes, Planner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Failure, advised};
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

/// Format tag of [`Infeasible`].
pub const INFEASIBLE_FORMAT: &str = "rekindle-infeasible/1";

/// In place of a plan's or a run's document; the command exits with [`NO_PLAN`](crate::exit::NO_PLAN).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Infeasible {
    /// [`INFEASIBLE_FORMAT`].
    pub format: String,
    /// The planner that was asked.
    #[schemars(with = "String", extend("enum" = Planner::ALL.map(Planner::name)))]
    pub planner: Planner,
    /// Always `false`.
    pub feasible: bool,
    /// The budget.
    pub budget_bytes: Bytes,
    /// The smallest budget that this planner fits.
    pub smallest_budget_bytes: Bytes,
    /// The smallest budget that any planner fits.
    pub smallest_budget_of_all_planners_bytes: Bytes,
    /// Where the plan of that planner has its peak, such as `while it makes the gradient of ..`; `null` if that is not known.
    pub floor: Option<String>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let smallest = advised(self.smallest_budget_of_all_planners_bytes);
        write!(
            f,
            "no plan fits {}; the smallest budget is {smallest}",
            self.budget_bytes
        )
    }
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

/// Writes the document of a failure, if JSON was asked for and the command wrote no document of its own.
pub(super) fn write(failure: &Failure) {
    match &failure.infeasible {
        Some(infeasible) => write_document(&**infeasible),
        None => write_document(&ErrorDocument::from(failure)),
    }
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

fn write_document(document: &impl Serialize) {
    let asked = env::args_os().any(|argument| argument == "--json");
    if asked && !output::wrote_document() {
        // The report is on standard error in any case.
        let _ = output::json(document);
    }
}

impl Failure {
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
