//! A run's folder.
//!
//! | file | holds | written |
//! |---|---|---|
//! | `history.csv`, `evaluations.csv` | a line for each step, and for each evaluation | line by line |
//! | `snapshot-500` | the state for resuming after step 500 | whole, see [`SnapshotEvery`] |
//! | `run.json` | the [`RunRecord`] | whole, with every snapshot and evaluation, and at the end |
//! | `weights.safetensors` | the model | whole, when the run ends or is stopped |
//! | `lock` | the process that trains here | when it starts |
//!
//! Files that are written whole are replaced atomically: after a crash or with a full disk, the previous files remain.
//! A resumed run continues from the newest whole snapshot, and the histories are truncated to it; without a snapshot
//! the run starts again.
//!
//! During training, a file that cannot be written does not end the run: it is [told](Event::Noticed), and writing is
//! tried again at the next opportunity.

mod snapshot_every;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use burn::module::Module;

pub use super::lock::is_running;
use super::{
    file_error::FileError,
    history::{self, History, Row},
    lock::Lock,
    progress::Progress,
    record::{EvalRecord, RunRecord, StepRecord},
    replace::{create_folder, read_regular, remove_remains, replace},
    session::{Event, Tell},
    snapshot::Snapshot,
    snapshots::{self, Snapshots},
    tensors,
};
pub use snapshot_every::SnapshotEvery;

/// The record of a run, in its folder.
pub const RECORD: &str = "run.json";
const HISTORY: &str = "history.csv";
const EVALUATIONS: &str = "evaluations.csv";
/// The weights of a run, in its folder.
pub(super) const WEIGHTS: &str = "weights.safetensors";

/// What messages call the histories.
const THE_HISTORY: &str = "the history";
const THE_EVALUATIONS: &str = "the history of evaluations";

/// The folder for a run's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// A folder without a run; created if it does not exist.
    New(PathBuf),
    /// A folder with a run to resume from its newest snapshot, or from the start if there is none.
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

    /// Locks the folder, and finds the newest whole snapshot of a run to resume: none if it was stopped before the first.
    pub(super) fn lock(&self, tell: &mut Tell<'_>) -> Result<(Lock, Option<Snapshot>), FileError> {
        let folder = self.folder();
        let shown = folder.display();
        match self {
            Self::New(_) => {
                create_folder(folder).map_err(FileError::refused(folder, "created"))?;
                let lock = Lock::take(folder)?;
                let begun = fs::metadata(folder.join(HISTORY))
                    .is_ok_and(|history| history.len() > StepRecord::COLUMNS.len() as u64);
                if begun || folder.join(RECORD).exists() || snapshots::any(folder)? {
                    return Err(FileError::content(
                        folder,
                        format!(
                            "already holds a run: continue it with `--resume {shown}`, or name another folder"
                        ),
                    ));
                }
                Ok((lock, None))
            }
            Self::Resume(_) => {
                fs::read_dir(folder).map_err(FileError::refused(folder, "read"))?;
                if !folder.join(HISTORY).exists() && !snapshots::any(folder)? {
                    return Err(FileError::system(
                        folder,
                        format!(
                            "holds no run to resume: `rekindle train CONFIG -o {shown}` starts one"
                        ),
                    ));
                }
                Ok((Lock::take(folder)?, newest(folder, tell)?))
            }
        }
    }

    /// The number of steps of the run in the folder, if it has finished them and everything after them.
    pub(super) fn finished(&self) -> Option<usize> {
        let folder = self.folder();
        let record = read_record(folder).ok()?;
        (!record.interrupted && folder.join(WEIGHTS).is_file()).then_some(record.steps)
    }
}

/// The newest whole snapshot, if there is one; damaged ones are told.
fn newest(folder: &Path, tell: &mut Tell<'_>) -> Result<Option<Snapshot>, FileError> {
    snapshots::newest(folder, |error| {
        let used = format!("{error}; the snapshot before it is used");
        tell(Event::Noticed(&used));
    })
}

/// The record in a run's folder.
///
/// # Errors
///
/// If there is none, or this version cannot read it.
pub fn read_record(folder: &Path) -> Result<RunRecord, FileError> {
    fs::read_dir(folder).map_err(FileError::refused(folder, "read"))?;
    let path = folder.join(RECORD);
    if !path.exists() {
        return Err(FileError::content(
            folder,
            "holds no record of a run: `train -o` writes one with every snapshot and at the run's end",
        ));
    }
    let text = read_regular(&path).map_err(FileError::refused(&path, "read"))?;
    RunRecord::from_json(&text)
        .map_err(|error| FileError::content(&path, format!("not a run's record: {error}")))
}

/// The last step in the history of a run's folder, if there is one.
#[must_use]
pub fn last_step(folder: &Path) -> Option<StepRecord> {
    history::last(&folder.join(HISTORY))
}

/// The history of a run that has done so many steps, and whose last line should be that of step `last`.
fn history<R: Row>(
    path: &Path,
    (done, last): (usize, usize),
    mut each: impl FnMut(&R),
    tell: &mut Tell<'_>,
) -> Result<History<R>, FileError> {
    let mut end = 0;
    let history = History::open(path, done, |row: &R| {
        end = row.step();
        each(row);
    })?;
    if end < last {
        tell(Event::Noticed(&format!(
            "{}: the lines after that of step {end} are damaged or missing, and lost",
            path.display()
        )));
    }
    Ok(history)
}

/// An open run folder, locked for this process.
pub(super) struct RunFiles {
    folder: PathBuf,
    steps: History<StepRecord>,
    evaluations: History<EvalRecord>,
    snapshots: Snapshots,
    /// The files that could not be written last: what messages call them, and why.
    unwritten: Vec<(&'static str, FileError)>,
    /// Whether a snapshot was removed to make room.
    made_room: bool,
    _lock: Lock,
}

impl RunFiles {
    /// Opens the files of a run that has come this far, so that write errors are found before the first step. `each` is called
    /// with the steps that were done.
    pub(super) fn open(
        folder: &Path,
        lock: Lock,
        keep_snapshots: usize,
        progress: &Progress,
        each: impl FnMut(&StepRecord),
        tell: &mut Tell<'_>,
    ) -> Result<Self, FileError> {
        remove_remains(folder).map_err(FileError::refused(folder, "tidied up"))?;
        let (done, evaluated) = (progress.steps, progress.evaluated_at());
        Ok(Self {
            steps: history(&folder.join(HISTORY), (done, done), each, tell)?,
            evaluations: history(&folder.join(EVALUATIONS), (done, evaluated), |_| (), tell)?,
            snapshots: Snapshots::of_run(folder, keep_snapshots, done)?,
            unwritten: Vec::new(),
            made_room: false,
            folder: folder.to_path_buf(),
            _lock: lock,
        })
    }

    /// Returns the newest whole snapshot, if there is one, and truncates the histories to it.
    pub(super) fn go_back(&mut self, tell: &mut Tell<'_>) -> Result<Option<Snapshot>, FileError> {
        let snapshot = newest(&self.folder, tell)?;
        if let Some(snapshot) = &snapshot {
            let progress = snapshot.progress();
            let (done, evaluated) = (progress.steps, progress.evaluated_at());
            // Lines of remaining steps may not be written yet.
            let _ = (self.steps.sync(), self.evaluations.sync());
            let [steps, evaluations] = [HISTORY, EVALUATIONS].map(|name| self.folder.join(name));
            self.steps = history(&steps, (done, done), |_| (), tell)?;
            self.evaluations = history(&evaluations, (done, evaluated), |_| (), tell)?;
            self.snapshots.forget_after(done);
        }
        Ok(snapshot)
    }

    /// Adds a step to the history.
    pub(super) fn stepped(&mut self, step: &StepRecord, tell: &mut Tell<'_>) {
        let written = self.steps.append(step);
        self.wrote(THE_HISTORY, written, tell);
    }

    /// Adds an evaluation to its history.
    pub(super) fn evaluated(&mut self, evaluation: &EvalRecord, tell: &mut Tell<'_>) {
        let written = self.evaluations.append(evaluation);
        self.wrote(THE_EVALUATIONS, written, tell);
    }

    /// Replaces the record.
    pub(super) fn write_record(&mut self, record: &RunRecord, tell: &mut Tell<'_>) {
        let path = self.folder.join(RECORD);
        self.write("the record", tell, |_| {
            let written = replace(&path, |out| {
                serde_json::to_writer_pretty(&mut *out, record)?;
                out.write_all(b"\n")
            });
            written.map_err(FileError::refused(&path, "written"))
        });
    }

    /// Takes a snapshot, which `save` writes. The histories are on the disk before it.
    pub(super) fn take_snapshot(
        &mut self,
        progress: &Progress,
        save: impl Fn(&mut dyn Write) -> io::Result<()>,
        tell: &mut Tell<'_>,
    ) {
        let (steps, evaluations) = (self.steps.sync(), self.evaluations.sync());
        self.write("the snapshot", tell, |snapshots| {
            snapshots.take(progress, &save)
        });
        self.wrote(THE_HISTORY, steps, tell);
        self.wrote(THE_EVALUATIONS, evaluations, tell);
    }

    /// Replaces the weights.
    pub(super) fn write_weights(&mut self, model: &impl Module, tell: &mut Tell<'_>) {
        let path = self.folder.join(WEIGHTS);
        self.write("the weights", tell, |_| {
            replace(&path, |out| tensors::write(model, out))
                .map_err(FileError::refused(&path, "written"))
        });
    }

    /// Tells at the run's end which files are not written.
    pub(super) fn ended(&self, tell: &mut Tell<'_>) {
        if self.unwritten.is_empty() {
            return;
        }
        let reasons = self.unwritten.iter().map(|(_, error)| error.to_string());
        let files: Vec<&str> = self.unwritten.iter().map(|(file, _)| *file).collect();
        tell(Event::Unwritten(&format!(
            "the run ended, but not all of its folder is written: {} ({})",
            files.join(" and "),
            reasons.collect::<Vec<_>>().join("; ")
        )));
    }

    /// Writes a whole file. If the disk is full, removes older snapshots one after another to make room.
    fn write(
        &mut self,
        file: &'static str,
        tell: &mut Tell<'_>,
        mut write: impl FnMut(&mut Snapshots) -> Result<(), FileError>,
    ) {
        let mut written = write(&mut self.snapshots);
        while written.as_ref().is_err_and(FileError::is_full_disk)
            && let Ok(Some(step)) = self.snapshots.make_room()
        {
            if !std::mem::replace(&mut self.made_room, true) {
                tell(Event::Noticed(&format!(
                    "the disk is full: removed the snapshot of step {step}; all but the newest may follow"
                )));
            }
            written = write(&mut self.snapshots);
        }
        self.wrote(file, written, tell);
    }

    /// Reports files that could not be written, once for each reason, and when they can be written again.
    fn wrote(&mut self, file: &'static str, written: Result<(), FileError>, tell: &mut Tell<'_>) {
        let before = self.unwritten.iter().position(|(other, _)| *other == file);
        let before = before.map(|place| self.unwritten.remove(place).1);
        match written {
            Ok(()) if before.is_some() => {
                tell(Event::WrittenAgain(&format!("{file} can be written again")));
            }
            Ok(()) => {}
            Err(error) => {
                if before.is_none_or(|before| before.reason() != error.reason()) {
                    tell(Event::Noticed(&format!(
                        "{error}; the run continues and tries again later"
                    )));
                }
                self.unwritten.push((file, error));
            }
        }
    }
}
