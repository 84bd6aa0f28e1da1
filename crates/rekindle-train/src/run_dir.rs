//! A run's folder.
//!
//! | file | holds | written |
//! |---|---|---|
//! | `history.csv`, `evaluations.csv` | a line for each step, and for each evaluation | line by line |
//! | `snapshot-500` | what a run needs to go on after step 500 | whole, see [`SnapshotEvery`] |
//! | `run.json` | the [`RunRecord`] | whole, with every snapshot and evaluation, and at the end |
//! | `weights.safetensors` | the model | whole, when the run ends or is stopped |
//! | `lock` | which process trains here | when it starts |
//!
//! Files that are written whole are replaced in one move: a crash or a full disk leaves the ones before. A resumed
//! run goes on from the newest snapshot that is whole, and the histories are cut back to it; where none was taken yet it
//! begins again.
//!
//! Once a run trains, a file that cannot be written does not end it: the observer gets a [`Notice`], and the file is
//! written at the next occasion.

mod notice;
mod snapshot_every;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use burn::module::Module;

use super::{
    history::{self, History, Row},
    lock::Lock,
    record::{EvalRecord, RunRecord, StepRecord},
    replace::{remove_remains, replace},
    run_dir_error::RunDirError,
    snapshot::{Progress, Snapshot, SnapshotWriter},
    snapshots::{self, Snapshots},
    weights,
};
pub use notice::{Notice, RunFile};
pub use snapshot_every::SnapshotEvery;

const RECORD: &str = "run.json";
const HISTORY: &str = "history.csv";
const EVALUATIONS: &str = "evaluations.csv";
const WEIGHTS: &str = "weights.safetensors";

/// Where a run leaves its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// A folder without a run in it; made where there is none.
    New(PathBuf),
    /// A folder with a run that goes on from its newest snapshot, or from the start where none was taken yet.
    Resume(PathBuf),
}

impl RunDir {
    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        match self {
            Self::New(folder) | Self::Resume(folder) => folder,
        }
    }
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

/// Every step in a run's folder, none where the folder has no history.
///
/// # Errors
///
/// If the history cannot be read, or is none.
pub fn read_steps(folder: &Path) -> Result<Vec<StepRecord>, RunDirError> {
    history::read(&folder.join(HISTORY))
}

/// Every evaluation in a run's folder.
///
/// # Errors
///
/// As [`read_steps`].
pub fn read_evaluations(folder: &Path) -> Result<Vec<EvalRecord>, RunDirError> {
    history::read(&folder.join(EVALUATIONS))
}

/// Is told what a user should know.
type Notify<'a> = dyn FnMut(&Notice<'_>) + 'a;

/// An open run folder, which no other process opens.
pub(super) struct RunFiles {
    folder: PathBuf,
    steps: History<StepRecord>,
    evaluations: History<EvalRecord>,
    snapshots: Snapshots,
    /// What could not be written last, and why.
    unwritten: Vec<(RunFile, String)>,
    /// Whether a snapshot was removed to make room.
    made_room: bool,
    _lock: Lock,
}

/// A run folder that nobody else opens, before what is in it is known to belong to the run.
pub(super) struct Locked {
    folder: PathBuf,
    lock: Lock,
}

impl Locked {
    /// Makes and locks the folder of a new run.
    pub(super) fn new_run(folder: &Path) -> Result<Self, RunDirError> {
        fs::create_dir_all(folder).map_err(RunDirError::refused(folder, "created"))?;
        let locked = Self::lock(folder)?;
        let begun = fs::metadata(folder.join(HISTORY))
            .is_ok_and(|history| history.len() > StepRecord::COLUMNS.len() as u64);
        if begun || folder.join(RECORD).exists() || snapshots::any(folder)? {
            return Err(RunDirError::HoldsRun {
                path: folder.to_path_buf(),
            });
        }
        Ok(locked)
    }

    /// Locks the folder of a run that goes on, and finds the snapshot that it goes on from: none where it was stopped
    /// before the first. `skipped` is told of damaged ones.
    pub(super) fn resumed(
        folder: &Path,
        skipped: impl FnMut(&RunDirError),
    ) -> Result<(Self, Option<Snapshot>), RunDirError> {
        fs::read_dir(folder).map_err(RunDirError::refused(folder, "read"))?;
        if !folder.join(HISTORY).exists() && !snapshots::any(folder)? {
            return Err(RunDirError::NoRun {
                path: folder.to_path_buf(),
            });
        }
        let locked = Self::lock(folder)?;
        let snapshot = snapshots::newest(folder, skipped)?;
        Ok((locked, snapshot))
    }

    fn lock(folder: &Path) -> Result<Self, RunDirError> {
        Ok(Self {
            lock: Lock::take(folder)?,
            folder: folder.to_path_buf(),
        })
    }

    /// Whether the run in the folder has done so many steps and all that comes after them.
    pub(super) fn has_finished(&self, steps: usize) -> bool {
        self.folder.join(WEIGHTS).exists()
            && read_record(&self.folder)
                .is_ok_and(|record| record.steps == steps && !record.interrupted)
    }

    /// Opens the files of a run that has done so many steps, so that what cannot be written is known before the first.
    /// `each` sees the steps that were done.
    pub(super) fn open(
        self,
        keep_snapshots: usize,
        done: usize,
        each: impl FnMut(&StepRecord),
    ) -> Result<RunFiles, RunDirError> {
        let Self { folder, lock } = self;
        remove_remains(&folder).map_err(RunDirError::refused(&folder, "tidied up"))?;
        Ok(RunFiles {
            steps: History::open(&folder.join(HISTORY), done, each)?,
            evaluations: History::open(&folder.join(EVALUATIONS), done, |_| ())?,
            snapshots: Snapshots::of_run(&folder, keep_snapshots, done)?,
            unwritten: Vec::new(),
            made_room: false,
            folder,
            _lock: lock,
        })
    }
}

impl RunFiles {
    /// The newest whole snapshot, if there is one: the run goes on from it, and the histories end there.
    pub(super) fn go_back(
        &mut self,
        notify: &mut Notify<'_>,
    ) -> Result<Option<Snapshot>, RunDirError> {
        let snapshot = snapshots::newest(&self.folder, |error| notify(&Notice::Damaged(error)))?;
        if let Some(snapshot) = &snapshot {
            let done = snapshot.progress().steps;
            // Lines of steps that stay may still wait.
            let _ = (self.steps.sync(), self.evaluations.sync());
            self.steps = History::open(&self.folder.join(HISTORY), done, |_| ())?;
            self.evaluations = History::open(&self.folder.join(EVALUATIONS), done, |_| ())?;
            self.snapshots.forget_after(done);
        }
        Ok(snapshot)
    }

    /// Adds a step to the history.
    pub(super) fn stepped(&mut self, step: &StepRecord, notify: &mut Notify<'_>) {
        let written = self.steps.append(step);
        self.wrote(RunFile::History, written, notify);
    }

    /// Adds an evaluation to its history.
    pub(super) fn evaluated(&mut self, evaluation: &EvalRecord, notify: &mut Notify<'_>) {
        let written = self.evaluations.append(evaluation);
        self.wrote(RunFile::Evaluations, written, notify);
    }

    /// Replaces the record.
    pub(super) fn write_record(&mut self, record: &RunRecord, notify: &mut Notify<'_>) {
        let path = self.folder.join(RECORD);
        self.write(RunFile::Record, notify, |_| {
            let written = replace(&path, |out| {
                serde_json::to_writer_pretty(&mut *out, record)?;
                out.write_all(b"\n")
            });
            written.map_err(RunDirError::refused(&path, "written"))
        });
    }

    /// Takes a snapshot. The histories are on the disk before it.
    pub(super) fn take_snapshot(
        &mut self,
        fingerprint: &str,
        progress: &Progress,
        tensors: impl Fn(&mut SnapshotWriter<'_>) -> io::Result<()>,
        notify: &mut Notify<'_>,
    ) {
        let (steps, evaluations) = (self.steps.sync(), self.evaluations.sync());
        self.write(RunFile::Snapshot, notify, |snapshots| {
            snapshots.take(fingerprint, progress, &tensors)
        });
        self.wrote(RunFile::History, steps, notify);
        self.wrote(RunFile::Evaluations, evaluations, notify);
    }

    /// Replaces the weights.
    pub(super) fn write_weights(&mut self, model: &impl Module, notify: &mut Notify<'_>) {
        let path = self.folder.join(WEIGHTS);
        self.write(RunFile::Weights, notify, |_| {
            weights::write(model, &path).map_err(RunDirError::refused(&path, "written"))
        });
    }

    /// Writes a whole file. Where the disk is full, older snapshots make room for it, one after another.
    fn write(
        &mut self,
        file: RunFile,
        notify: &mut Notify<'_>,
        mut write: impl FnMut(&mut Snapshots) -> Result<(), RunDirError>,
    ) {
        let mut written = write(&mut self.snapshots);
        while written.as_ref().is_err_and(RunDirError::is_full_disk)
            && let Ok(Some(step)) = self.snapshots.make_room()
        {
            if !std::mem::replace(&mut self.made_room, true) {
                notify(&Notice::MadeRoom(step));
            }
            written = write(&mut self.snapshots);
        }
        self.wrote(file, written, notify);
    }

    /// Says what could not be written, once for each reason, and when it could be again.
    fn wrote(&mut self, file: RunFile, written: Result<(), RunDirError>, notify: &mut Notify<'_>) {
        let before = self.unwritten.iter().position(|(other, _)| *other == file);
        let before = before.map(|place| self.unwritten.swap_remove(place));
        match written {
            Ok(()) if before.is_some() => notify(&Notice::WrittenAgain(file)),
            Ok(()) => {}
            Err(error) => {
                let reason = error.reason();
                if before.is_none_or(|(_, before)| before != reason) {
                    notify(&Notice::NotWritten(file, &error));
                }
                self.unwritten.push((file, reason));
            }
        }
    }
}
