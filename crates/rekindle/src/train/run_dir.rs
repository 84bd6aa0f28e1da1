//! A run's folder.
//!
//! | file | holds | written |
//! |---|---|---|
//! | `history.csv` | a line for each step | line by line, as steps are done |
//! | `run.json` | the [`RunRecord`] | whole, at every evaluation and at the end |
//! | `snapshot` | what a resumed run needs | whole, see [`Job::snapshot_every`](super::session::Job::snapshot_every) |
//!
//! Files that are written whole are replaced in one move: a crash or a full disk leaves the ones before. A resumed
//! run goes on from the snapshot, and the history is cut back to it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{
    record::{RunRecord, StepRecord},
    replace::replace,
    run_dir_error::RunDirError,
    snapshot::{self, Progress, Snapshot, SnapshotWriter},
};

const RECORD: &str = "run.json";
const HISTORY: &str = "history.csv";
const SNAPSHOT: &str = "snapshot";
const COLUMNS: &str = "step,loss,accuracy,learning_rate,step_s\n";

/// Where a run leaves its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// A folder without a run in it; made where there is none.
    New(PathBuf),
    /// A folder with a run that goes on from its snapshot.
    Resume(PathBuf),
}

/// The record in a run's folder.
///
/// # Errors
///
/// If there is none, or none that this version reads.
pub fn read_record(folder: &Path) -> Result<RunRecord, RunDirError> {
    fs::read_dir(folder).map_err(RunDirError::refused(folder, "read"))?;
    let path = folder.join(RECORD);
    if !path.exists() {
        return Err(RunDirError::NoRecord {
            path: folder.to_path_buf(),
        });
    }
    let text = fs::read(&path).map_err(RunDirError::refused(&path, "read"))?;
    RunRecord::from_json(&text).map_err(|source| RunDirError::Record { path, source })
}

/// An open run folder.
pub(super) struct RunFiles {
    folder: PathBuf,
    history: File,
}

impl RunFiles {
    /// Opens the folder of a new run. The folder gets an empty history, so that one that cannot be written to is
    /// known before the first step.
    pub(super) fn create(folder: &Path) -> Result<Self, RunDirError> {
        let has = |name| folder.join(name).exists();
        let path = folder.to_path_buf();
        if has(SNAPSHOT) {
            return Err(RunDirError::HoldsRun { path });
        }
        let steps_recorded = fs::metadata(folder.join(HISTORY))
            .is_ok_and(|history| history.len() > COLUMNS.len() as u64);
        if has(RECORD) || steps_recorded {
            return Err(RunDirError::HoldsRemains { path });
        }
        fs::create_dir_all(folder).map_err(RunDirError::refused(folder, "created"))?;
        Self::open(folder, &[])
    }

    /// The snapshot in the folder of a run that stopped.
    pub(super) fn snapshot(folder: &Path) -> Result<Snapshot, RunDirError> {
        let path = folder.join(SNAPSHOT);
        if folder.is_dir() && !path.exists() {
            return Err(RunDirError::NoSnapshot {
                path: folder.to_path_buf(),
            });
        }
        Snapshot::open(&path)
    }

    /// Opens the folder of a run that goes on after these steps.
    pub(super) fn open(folder: &Path, done: &[StepRecord]) -> Result<Self, RunDirError> {
        let path = folder.join(HISTORY);
        replace(&path, |out| {
            out.write_all(COLUMNS.as_bytes())?;
            done.iter().try_for_each(|step| write_line(out, step))
        })?;
        let history = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(RunDirError::refused(&path, "written"))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            history,
        })
    }

    /// Adds a step to the history.
    pub(super) fn stepped(&mut self, step: &StepRecord) -> Result<(), RunDirError> {
        write_line(&mut self.history, step)
            .map_err(RunDirError::refused(&self.folder.join(HISTORY), "written"))
    }

    /// Replaces the record.
    pub(super) fn write_record(&self, record: &RunRecord) -> Result<(), RunDirError> {
        replace(&self.folder.join(RECORD), |out| {
            serde_json::to_writer_pretty(&mut *out, record)?;
            out.write_all(b"\n")
        })
    }

    /// Replaces the snapshot.
    pub(super) fn write_snapshot(
        &self,
        fingerprint: &str,
        progress: &Progress,
        tensors: impl FnOnce(&mut SnapshotWriter<'_>) -> io::Result<()>,
    ) -> Result<(), RunDirError> {
        snapshot::write(&self.folder.join(SNAPSHOT), fingerprint, progress, tensors)
    }
}

/// One line, written at once: a reader beside the run sees whole lines.
fn write_line(out: &mut impl Write, step: &StepRecord) -> io::Result<()> {
    let accuracy = step.accuracy.map(|share| share.to_string());
    let line = format!(
        "{},{},{},{},{}\n",
        step.step,
        step.loss,
        accuracy.unwrap_or_default(),
        step.learning_rate,
        step.step_s.0
    );
    out.write_all(line.as_bytes())
}
