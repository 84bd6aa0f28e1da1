//! Notices during a run: about its folder, and about what the run leaves out.

use std::{fmt, path::Path};

use rekindle_plan::Bytes;

use crate::file_error::FileError;

/// A notice for the user about the run's folder that does not end the run.
#[derive(Debug)]
pub enum Notice<'a> {
    /// A file could not be written; reported once for each reason, until it can be written.
    NotWritten(&'a FileError),
    /// A file that could not be written before has been written: what it is called.
    WrittenAgain(&'a str),
    /// The run is over, and these files could not be written last: what they are called, and why.
    Unwritten(&'a [(&'static str, FileError)]),
    /// The disk is full, and the snapshot of this step was removed to write something newer. Reported once.
    MadeRoom(usize),
    /// A snapshot is damaged, and the previous one is tried.
    Damaged(&'a FileError),
    /// Memory ran out in a step that had updated some parameters: the run continues from an earlier snapshot.
    WentBack {
        /// The step, from 1.
        failed: usize,
        /// The step of the snapshot.
        to: usize,
    },
    /// The resumed run was stopped before its first snapshot, and starts again.
    BeginsAgain(&'a Path),
    /// A step is not traced, because kernels for that are not chosen yet, and choosing them does not fit the budget.
    NotTraced {
        /// The step, from 1.
        step: usize,
        /// Memory that it may need.
        needed: Bytes,
        /// The budget.
        budget: Bytes,
    },
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWritten(error) => {
                write!(f, "{error}; the run continues and tries again later")
            }
            Self::WrittenAgain(file) => write!(f, "{file} could be written now"),
            Self::Unwritten(files) => {
                let reasons = files.iter().map(|(_, error)| error.to_string());
                let files: Vec<&str> = files.iter().map(|(file, _)| *file).collect();
                write!(
                    f,
                    "the run ended, but not all of its folder is written: {} ({})",
                    files.join(" and "),
                    reasons.collect::<Vec<_>>().join("; ")
                )
            }
            Self::MadeRoom(step) => write!(
                f,
                "the disk is full: the snapshot of step {step} was removed to make room, and so will be others but the newest"
            ),
            Self::Damaged(error) => write!(f, "{error}; the snapshot before it is used"),
            Self::WentBack { failed, to } => write!(
                f,
                "step {failed} ran out of memory after some of its updates: back to the snapshot of step {to}"
            ),
            Self::BeginsAgain(folder) => write!(
                f,
                "{}: the run was stopped before its first snapshot and begins again",
                folder.display()
            ),
            Self::NotTraced {
                step,
                needed,
                budget,
            } => write!(
                f,
                "step {step} is not traced: choosing kernels for that may take up to {needed}, more than {budget}"
            ),
        }
    }
}
