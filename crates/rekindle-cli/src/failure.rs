//! Failures of a command: an exit code, and a report with the problem, its position and how to fix it.

pub mod document;
pub mod infeasible;
mod process;

use std::{fmt::Display, ops::Range, path::Path};

use miette::{LabeledSpan, MietteDiagnostic, NamedSource, Report};
use rekindle::{record::RecordError, reduce::ReduceError};
use rekindle_plan::Bytes;
use rekindle_train::{
    FileError,
    device::{device_fault, innermost_cause, refused_kernel, tile_too_large},
    session::{Infeasible, RunError},
    shortage::speaks_of_memory,
};

pub use self::{
    document::end,
    infeasible::{InfeasibleDocument, advised},
    process::{
        check_address_space, note_plan, note_step, report_exhausted_memory, report_panics_as_bugs,
    },
};
use crate::{exit, terminal};

/// An exit code, and what people are told.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: i32,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// The place in a config, in bytes.
    pub span: Option<Range<usize>>,
    /// The config.
    pub source: Option<Box<NamedSource<String>>>,
    /// What JSON says instead, where no plan fits a budget.
    pub infeasible: Option<Box<Infeasible>>,
}

/// The result of a command.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// Bad usage, or a file whose content is wrong.
    pub fn usage(message: impl Display) -> Self {
        Self::coded(exit::USAGE, message)
    }

    /// The system could not access a file.
    pub fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::coded(
            exit::FILE_REFUSED,
            format_args!("{}: {error}", path.display()),
        )
    }

    /// Any failure without its own exit code.
    pub fn other(message: impl Display) -> Self {
        Self::coded(exit::OTHER, message)
    }

    /// A failure with an exit code. Control characters in names from files are escaped.
    pub fn coded(code: i32, message: impl Display) -> Self {
        Self {
            code,
            message: terminal::shown(&message.to_string()),
            help: None,
            span: None,
            source: None,
            infeasible: None,
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn help(mut self, help: impl Display) -> Self {
        self.help = Some(terminal::shown(&help.to_string()));
        self
    }

    /// Adds the config that it is in, whose lines are shown.
    pub fn in_config(mut self, path: &Path, text: &str) -> Self {
        let source = NamedSource::new(path.display().to_string(), terminal::in_place(text));
        self.source = Some(Box::new(source));
        self
    }

    /// The report for people.
    pub fn report(&self) -> Report {
        let label = self.span.clone().map(|span| LabeledSpan::at(span, "here"));
        let report = Report::new(MietteDiagnostic {
            help: self.help.clone(),
            labels: label.map(|label| vec![label]),
            ..MietteDiagnostic::new(&self.message)
        });
        match &self.source {
            Some(source) => report.with_source_code((**source).clone()),
            None => report,
        }
    }
}

impl From<Infeasible> for Failure {
    fn from(error: Infeasible) -> Self {
        let (planner, smallest) = match error.smallest_of_all < error.smallest {
            true => ("--planner auto ", error.smallest_of_all),
            false => ("", error.smallest),
        };
        let failure = Self::coded(exit::NO_PLAN, &error);
        let budget = format!("`{planner}--budget {}`", advised(smallest));
        let help = match error.batch {
            Some(batch) if smallest > error.budget => format!("try `--batch {batch}`"),
            Some(batch) => format!("try `--batch {batch}`, or {budget}"),
            None => format!("try {budget}"),
        };
        Self {
            infeasible: Some(Box::new(error)),
            ..failure.help(help)
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let code = match error.is_of_system() {
            true => exit::FILE_REFUSED,
            false => exit::USAGE,
        };
        Self::coded(code, error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        let coded = |code| Self::coded(code, &error);
        match &error {
            RecordError::Infeasible { smallest, .. } => {
                coded(exit::NO_PLAN).help(format!("try `--budget {}`", advised(*smallest)))
            }
            RecordError::Choosing { needed, .. } => coded(exit::NO_PLAN).help(format!(
                "run once with `--budget {}` to tune kernels; the cache then allows smaller budgets",
                advised(*needed)
            )),
            RecordError::OutOfMemory(_) | RecordError::OverBudget { .. } => {
                coded(exit::OUT_OF_MEMORY).help(SMALLER)
            }
            RecordError::Device(message) => {
                device_failure(message).unwrap_or_else(|| coded(exit::OTHER))
            }
            RecordError::TensorTooLarge { .. } => coded(exit::NO_PLAN),
            RecordError::Reduce(ReduceError::Differ { .. }) => coded(exit::USAGE),
            RecordError::Reduce(ReduceError::TimedOut { .. }) => coded(exit::OTHER).help(
                "`rekindle train --resume RUN_DIR`; `REKINDLE_RANK_TIMEOUT=30min` makes ranks wait longer",
            ),
            RecordError::NotFinite { .. } => coded(exit::NOT_FINITE).help(FINITE),
            RecordError::PartlyUpdated { source, .. } => {
                coded(Self::from((**source).clone()).code).help(
                    "`rekindle train --resume RUN_DIR --update after`: a failed step then leaves the model unchanged",
                )
            }
            _ => coded(exit::OTHER),
        }
    }
}

/// What to do where a loss or gradient is not finite.
const FINITE: &str = "lower `learning_rate` or `clip_norm`; or `--on-nonfinite skip --update after` leaves such updates out";

/// A defect of cubek-matmul 0.3.1, `docs/upstream.md`, 11.
const TILE: &str =
    "the device failed: cubek-matmul asks for a tile of more than 256 rows (docs/upstream.md, 11)";

/// The failure of a device that a message describes.
fn device_failure(message: &str) -> Option<Failure> {
    if speaks_of_memory(message) {
        let cause = innermost_cause(message);
        let text = format!("the device ran out of memory ({cause})");
        return Some(Failure::coded(exit::OUT_OF_MEMORY, text).help(SMALLER));
    }
    let (text, help) = if let Some(said) = refused_kernel(message) {
        (
            format!("the device failed: a kernel does not compile: {said}"),
            "`rekindle devices` shows NVRTC and headers, which must be of one CUDA version (docs/cuda.md)",
        )
    } else if tile_too_large(message) {
        (
            TILE.to_owned(),
            "`--dtype f32`, or a `--batch` of fewer than four times as many rows as a layer has outputs",
        )
    } else {
        (
            format!("the device failed: {}", device_fault(message)?),
            "`rekindle train --resume RUN_DIR` continues from the last snapshot; `nvidia-smi -q` may say more",
        )
    };
    Some(Failure::other(text).help(help))
}

/// What to do where memory runs out.
const SMALLER: &str = "a smaller `--batch` or `--budget` may help; `--resume RUN_DIR` continues from the last snapshot";

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Infeasible(error) => error.into(),
            RunError::NotEnough { free, .. } => {
                let less = advised(Bytes(free.0 / 10 * 9));
                Self::coded(exit::NO_PLAN, error).help(format!("`--budget {less}` plans for less"))
            }
            RunError::TensorTooLarge { is_weight, .. } => {
                let help = match is_weight {
                    true => {
                        "`--dtype f16`, a smaller layer, or another `--device`; no budget changes that"
                    }
                    false => {
                        "a smaller `--batch`, or `accumulate` in [train]; no budget changes that"
                    }
                };
                Self::coded(exit::NO_PLAN, error).help(help)
            }
            RunError::OutOfMemory(_) => Self::coded(exit::OUT_OF_MEMORY, error).help(SMALLER),
            RunError::OverBudget { .. } => Self::coded(exit::NO_PLAN, error),
            RunError::Shape(_)
            | RunError::Plan(_)
            | RunError::Refused(_)
            | RunError::Device(_)
            | RunError::Finished { .. } => Self::usage(error),
            RunError::File(error) => error.into(),
            RunError::Recorded(error) => error.into(),
            RunError::NonFinite(_) => Self::coded(exit::NOT_FINITE, error).help(FINITE),
            RunError::OtherRank => Self::coded(exit::OTHER_RANK, error),
            RunError::Batch(_) => Self::other(error),
        }
    }
}
