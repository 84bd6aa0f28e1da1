//! Failures of a command: an exit code, and a report with the problem, its position and how to fix it; how a command ends.

pub mod document;
mod process;

use std::fmt::Display;

use miette::{Report, miette};
use rekindle::{record::RecordError, reduce::ReduceError};
use rekindle_plan::{Bytes, PlanError};
use rekindle_train::{
    FileError, TrainError,
    data::DataError,
    device::{device_fault, innermost_cause, refused_kernel, seal_kernels, tile_too_large},
    session::RunError,
    shortage::speaks_of_memory,
};

use self::document::{INFEASIBLE_FORMAT, Infeasible};
pub use self::process::{
    check_address_space, note_plan, note_step, report_exhausted_memory, report_panics_as_bugs,
};
use crate::{exit, terminal};

/// An exit code and a report for people.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: i32,
    /// The report.
    pub report: Report,
    /// What JSON says instead of the report, where no plan fits a budget.
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
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
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
            report: miette!("{}", terminal::shown(&message.to_string())),
            infeasible: None,
        }
    }

    /// The same with a code and help of its own.
    pub fn with_help(code: i32, message: impl Display, help: impl Display) -> Self {
        Self {
            code,
            report: miette!(
                help = terminal::shown(&help.to_string()),
                "{}",
                terminal::shown(&message.to_string())
            ),
            infeasible: None,
        }
    }

    /// Says why a command failed: for people, and as JSON where that was asked for.
    pub fn tell(&self) {
        complain!("{:?}", self.report);
        document::write(self);
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

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::File(error) => error.into(),
            DataError::Setting(_) => Self::usage(error),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let PlanError::Infeasible {
            planner,
            budget,
            smallest,
            smallest_of_all,
            floor,
        } = &error
        else {
            return Self::usage(error);
        };
        let help = match smallest_of_all < smallest {
            true => format!(
                "try `--planner auto --budget {}`",
                advised(*smallest_of_all)
            ),
            false => format!("try `--budget {}`", advised(*smallest)),
        };
        let infeasible = Infeasible {
            format: INFEASIBLE_FORMAT.into(),
            planner: *planner,
            feasible: false,
            budget_bytes: *budget,
            smallest_budget_bytes: *smallest,
            smallest_budget_of_all_planners_bytes: *smallest_of_all,
            floor: floor.clone(),
        };
        Self {
            infeasible: Some(Box::new(infeasible)),
            ..Self::with_help(exit::NO_PLAN, &error, help)
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
        match &error {
            RecordError::Infeasible { smallest, .. } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!("try `--budget {}`", advised(*smallest)),
            ),
            RecordError::Choosing { needed, .. } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!(
                    "run once with `--budget {}` to tune kernels; the cache then allows smaller budgets",
                    advised(*needed)
                ),
            ),
            RecordError::OutOfMemory(_) | RecordError::OverBudget { .. } => {
                Self::with_help(exit::OUT_OF_MEMORY, error, SMALLER)
            }
            RecordError::Device(message) => {
                device_failure(message).unwrap_or_else(|| Self::other(&error))
            }
            RecordError::TensorTooLarge { .. } => Self::coded(exit::NO_PLAN, error),
            RecordError::Reduce(ReduceError::Differ { .. }) => Self::usage(error),
            RecordError::Reduce(ReduceError::TimedOut { .. }) => {
                let help = "`rekindle train --resume RUN_DIR`; `REKINDLE_RANK_TIMEOUT=30min` makes ranks wait longer";
                Self::with_help(exit::OTHER, &error, help)
            }
            RecordError::NotFinite { .. } => Self::with_help(exit::NOT_FINITE, &error, FINITE),
            RecordError::PartlyUpdated { source, .. } => {
                let code = Self::from((**source).clone()).code;
                let help = "`rekindle train --resume RUN_DIR --update after`: a failed step then leaves the model unchanged";
                Self::with_help(code, &error, help)
            }
            _ => Self::other(error),
        }
    }
}

/// Share that is added to a smallest budget in advice: the other memory of a process, and measurements, vary a little
/// from process to process.
const LEEWAY: f64 = 0.005;

/// The smallest budget as it may be typed: a little more, rounded up to a tenth of its unit.
pub(crate) fn advised(smallest: Bytes) -> String {
    let bytes = smallest.0 as f64 * (1.0 + LEEWAY);
    let (unit, size) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .map(|(unit, bits)| (unit, f64::from(1 << bits)))
        .into_iter()
        .rfind(|(_, size)| bytes >= *size)
        .unwrap_or(("KiB", 1024.0));
    format!("{:.1}{unit}", (bytes / size * 10.0).ceil() / 10.0)
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
        return Some(Failure::with_help(exit::OUT_OF_MEMORY, text, SMALLER));
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
    Some(Failure::with_help(exit::OTHER, text, help))
}

/// What to do where memory runs out.
const SMALLER: &str = "a smaller `--batch` or `--budget` may help; `--resume RUN_DIR` continues from the last snapshot";

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Data(error) => error.into(),
            RunError::Plan(error) => error.into(),
            RunError::NotEnough { free, .. } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!(
                    "`--budget {}` plans for less",
                    advised(Bytes(free.0 / 10 * 9))
                ),
            ),
            RunError::TensorTooLarge { is_weight, .. } => {
                let help = match is_weight {
                    true => {
                        "`--dtype f16`, a smaller layer, or another `--device`; no budget changes that"
                    }
                    false => {
                        "a smaller `--batch`, or `accumulate` in [train]; no budget changes that"
                    }
                };
                Self::with_help(exit::NO_PLAN, error, help)
            }
            RunError::OutOfMemory(_) | RunError::Train(TrainError::Short(_)) => {
                Self::with_help(exit::OUT_OF_MEMORY, error, SMALLER)
            }
            RunError::OverBudget { .. } => Self::coded(exit::NO_PLAN, error),
            RunError::Shape(_)
            | RunError::Refused(_)
            | RunError::Device(_)
            | RunError::Finished { .. } => Self::usage(error),
            RunError::File(error) => error.into(),
            RunError::Train(TrainError::Recorded(error)) => error.into(),
            RunError::NonFinite { .. } => Self::with_help(exit::NOT_FINITE, error, FINITE),
            RunError::Train(TrainError::OtherRank) => Self::coded(exit::OTHER_RANK, error),
            RunError::Train(_) => Self::other(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle::size::Size;

    #[test]
    fn advised_budgets_can_be_typed_and_are_no_smaller() {
        for bytes in [1, 1000, 1024, 26_933_165, 1 << 30, (1 << 30) - 1, 13 << 40] {
            let typed = advised(Bytes(bytes));
            let Ok(Size::Bytes(read)) = typed.parse() else {
                panic!("{typed}");
            };
            assert!(read.0 >= bytes, "{typed} for {bytes}");
            let most = (bytes as f64 * 1.2).max(1024.0);
            assert!(read.0 as f64 <= most, "{typed} for {bytes}");
        }
        assert_eq!(advised(Bytes(26_933_165)), "25.9MiB");
    }
}
