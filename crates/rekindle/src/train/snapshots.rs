//! The snapshots in a run's folder: `snapshot-500` was taken after step 500.
//!
//! The newest ones and that of the best evaluation are kept. Older ones are removed after a new one is whole, never
//! before; so are damaged ones.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    run_dir_error::RunDirError,
    snapshot::{self, Progress, Snapshot, SnapshotWriter},
};

const PREFIX: &str = "snapshot-";

/// The only one that earlier versions kept.
const EARLIER: &str = "snapshot";

/// Snapshots that may be kept.
#[derive(Debug)]
pub(super) struct Snapshots {
    folder: PathBuf,
    keep: usize,
    /// Steps after which a snapshot was taken that belongs to this run.
    own: BTreeSet<usize>,
}

impl Snapshots {
    /// Those of a run that has done so many steps. The newest `keep` are kept, at least one.
    pub(super) fn of_run(folder: &Path, keep: usize, done: usize) -> Result<Self, RunDirError> {
        let mut own = taken(folder)?;
        own.retain(|&step| step <= done);
        Ok(Self {
            folder: folder.to_path_buf(),
            keep: keep.max(1),
            own,
        })
    }

    /// Takes one more; `tensors` writes the model and the optimizer, in this order. The folder is left with the newest
    /// ones and the best.
    pub(super) fn take(
        &mut self,
        fingerprint: &str,
        progress: &Progress,
        tensors: impl FnOnce(&mut SnapshotWriter<'_>) -> io::Result<()>,
    ) -> Result<(), RunDirError> {
        let path = path(&self.folder, progress.steps);
        snapshot::write(&path, fingerprint, progress, tensors)?;
        self.own.insert(progress.steps);
        let best = progress.best.as_ref().map(|best| best.step);
        let newest: Vec<usize> = self.own.iter().rev().take(self.keep).copied().collect();
        self.own
            .retain(|step| newest.contains(step) || best == Some(*step));
        for step in taken(&self.folder)?.difference(&self.own) {
            let path = self::path(&self.folder, *step);
            fs::remove_file(&path).map_err(RunDirError::refused(&path, "removed"))?;
        }
        Ok(())
    }
}

/// Whether the folder has a snapshot, whole or not.
pub(super) fn any(folder: &Path) -> Result<bool, RunDirError> {
    Ok(!taken(folder)?.is_empty() || folder.join(EARLIER).is_file())
}

/// The newest whole snapshot, if there is any; `skipped` is told of each that is newer and damaged.
pub(super) fn newest(
    folder: &Path,
    skipped: impl FnMut(&RunDirError),
) -> Result<Option<Snapshot>, RunDirError> {
    let taken = taken(folder)?;
    let earlier = folder.join(EARLIER);
    if taken.is_empty() && earlier.is_file() {
        return Snapshot::open(&earlier).map(Some);
    }
    let mut damaged = Vec::new();
    for step in taken.iter().rev() {
        match Snapshot::open(&path(folder, *step)) {
            Ok(snapshot) => {
                damaged.iter().for_each(skipped);
                return Ok(Some(snapshot));
            }
            Err(error) => damaged.push(error),
        }
    }
    match damaged.into_iter().next() {
        None => Ok(None),
        Some(newest) => Err(RunDirError::NoneWhole {
            path: folder.to_path_buf(),
            count: taken.len(),
            newest: Box::new(newest),
        }),
    }
}

fn path(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("{PREFIX}{step}"))
}

/// Steps after which snapshots in the folder were taken.
fn taken(folder: &Path) -> Result<BTreeSet<usize>, RunDirError> {
    let refused = || RunDirError::refused(folder, "read");
    let mut steps = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(refused())? {
        let entry = entry.map_err(refused())?;
        if !entry.file_type().map_err(refused())?.is_file() {
            continue;
        }
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        steps.extend(step.and_then(|step| step.parse::<usize>().ok()));
    }
    Ok(steps)
}
