//! What happens in a run, told while it runs; of it, what is said of the run's folder.

use std::{fmt, path::Path};

use rekindle_plan::Bytes;

use super::Planned;
use crate::{
    file_error::FileError,
    nonfinite::NonFinite,
    record::{EvalRecord, MemoryGrowth, StepRecord},
    shortage::Shortage,
    tracker::TrackedPass,
};

/// Memory during a run.
#[derive(Debug, Clone, Copy)]
pub struct MemoryNow {
    /// Bytes in use after the last step.
    pub in_use: Bytes,
    /// Bytes after the last step, as the budget counts them.
    pub counted: Bytes,
    /// The highest peak so far, of the same bytes.
    pub counted_peak: Bytes,
}

/// Something that happens in a run.
pub enum Event<'a> {
    /// The step's operations are being measured.
    Measuring {
        /// Runs that are done.
        done: usize,
        /// All runs.
        of: usize,
    },
    /// The plan is made.
    Planned {
        /// The plan.
        planned: &'a Planned,
        /// The step that it runs first, from 1.
        step: usize,
    },
    /// A step is done.
    Stepped {
        /// Its loss, its time.
        step: &'a StepRecord,
        /// Memory after it.
        memory: MemoryNow,
        /// Whether the run stops cleanly here.
        stop: &'a mut bool,
    },
    /// A tracked step is done.
    Tracked(&'a [TrackedPass]),
    /// Memory in use grows with the steps. Told once.
    Grows(MemoryGrowth),
    /// A step was abandoned because of too little memory, or the next one would be: another plan is used from here on.
    PlannedAgain {
        /// The step that it runs first, from 1.
        step: usize,
        /// The cause.
        shortage: &'a Shortage,
        /// The budget of the previous plan, or its peak if it had none.
        before: Bytes,
        /// The budget of this one.
        budget: Bytes,
        /// The plan.
        planned: &'a Planned,
    },
    /// The loss or a gradient of a step is not finite, and the run continues.
    NonFinite(&'a NonFinite),
    /// No snapshot is taken after a step: the previous one is kept.
    SnapshotWithheld {
        /// The step.
        step: usize,
        /// What is not finite.
        what: &'a str,
    },
    /// Something about the run's folder that does not end the run.
    Noticed(&'a Notice<'a>),
    /// An evaluation goes on.
    Evaluating {
        /// Samples that are done.
        done: usize,
        /// All samples.
        of: usize,
        /// Whether the run stops cleanly here, without this evaluation.
        stop: &'a mut bool,
    },
    /// An evaluation is done.
    Evaluated(&'a EvalRecord),
}

/// Takes the events of a run.
pub type Tell<'a> = dyn FnMut(Event<'_>) + 'a;

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
            Self::WrittenAgain(file) => write!(f, "{file} can be written again"),
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
                "the disk is full: removed the snapshot of step {step}; all but the newest may follow"
            ),
            Self::Damaged(error) => write!(f, "{error}; the snapshot before it is used"),
            Self::WentBack { failed, to } => write!(
                f,
                "step {failed} ran out of memory after some of its updates: back to the snapshot of step {to}"
            ),
            Self::BeginsAgain(folder) => write!(
                f,
                "{}: the run has no snapshot and starts again",
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
