//! The snapshots in a run's folder: `snapshot-500` was taken after step 500.
//!
//! The newest ones and that of the best evaluation are kept. Older and damaged ones are removed after a new one is
//! complete. If the disk is full, all but the newest whole one may be removed earlier.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{file_error::FileError, progress::Progress, replace::replace, snapshot::Snapshot};

const PREFIX: &str = "snapshot-";

/// Snapshots that may be kept.
#[derive(Debug)]
pub(super) struct Snapshots {
    folder: PathBuf,
    keep: usize,
    /// Steps after which a snapshot was taken that belongs to this run.
    own: BTreeSet<usize>,
    /// The step of the best evaluation, as far as it is known.
    best: Option<usize>,
}

impl Snapshots {
    /// The snapshots of a run that has done this many steps. The newest `keep` are kept, at least one.
    pub(super) fn of_run(folder: &Path, keep: usize, done: usize) -> Result<Self, FileError> {
        let mut own = taken(folder)?;
        own.retain(|&step| step <= done);
        Ok(Self {
            folder: folder.to_path_buf(),
            keep: keep.max(1),
            own,
            best: None,
        })
    }

    /// The run goes back to this step: later snapshots no longer belong to it.
    pub(super) fn forget_after(&mut self, step: usize) {
        self.own.retain(|taken| *taken <= step);
    }

    /// Takes a snapshot, which `save` writes. Then removes all but the newest ones and the best.
    pub(super) fn take(
        &mut self,
        progress: &Progress,
        save: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), FileError> {
        self.best = progress.best.as_ref().map(|best| best.step);
        let path = path(&self.folder, progress.steps);
        replace(&path, save).map_err(FileError::refused(&path, "written"))?;
        self.own.insert(progress.steps);
        let best = self.best;
        let newest: Vec<usize> = self.own.iter().rev().take(self.keep).copied().collect();
        self.own
            .retain(|step| newest.contains(step) || best == Some(*step));
        for step in taken(&self.folder)?.difference(&self.own) {
            self.remove(*step)?;
        }
        Ok(())
    }

    /// Removes a snapshot to make room, and returns its step: the oldest first, that of the best evaluation last, the
    /// newest whole one never.
    pub(super) fn make_room(&mut self) -> Result<Option<usize>, FileError> {
        let mut there = taken(&self.folder)?;
        let mut newest = there.iter().rev();
        let whole = newest.find(|&&step| Snapshot::open(&path(&self.folder, step)).is_ok());
        let Some(whole) = whole.copied() else {
            return Ok(None);
        };
        there.remove(&whole);
        let oldest = there.iter().find(|&&step| self.best != Some(step));
        let gone = oldest.or(there.first()).copied();
        if let Some(step) = gone {
            self.remove(step)?;
            self.own.remove(&step);
        }
        Ok(gone)
    }

    fn remove(&self, step: usize) -> Result<(), FileError> {
        let path = path(&self.folder, step);
        fs::remove_file(&path).map_err(FileError::refused(&path, "removed"))
    }
}

/// Whether the folder has a snapshot, whole or not.
pub(super) fn any(folder: &Path) -> Result<bool, FileError> {
    Ok(!taken(folder)?.is_empty())
}

/// The newest whole snapshot, if there is any; `skipped` is called for each newer, damaged one.
pub(super) fn newest(
    folder: &Path,
    skipped: impl FnMut(&FileError),
) -> Result<Option<Snapshot>, FileError> {
    let taken = taken(folder)?;
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
        Some(newest) => Err(FileError::content(
            folder,
            format!(
                "none of its {} snapshots can be read: start a new run in another folder (the newest: {newest})",
                taken.len()
            ),
        )),
    }
}

fn path(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("{PREFIX}{step}"))
}

/// Steps after which snapshots in the folder were taken.
fn taken(folder: &Path) -> Result<BTreeSet<usize>, FileError> {
    let refused = || FileError::refused(folder, "read");
    let mut steps = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(refused())? {
        let entry = entry.map_err(refused())?;
        if !entry.file_type().map_err(refused())?.is_file() {
            continue;
        }
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        // Another file is `snapshot-007`.
        let number = step.and_then(|step| step.parse::<usize>().ok());
        steps.extend(number.filter(|number| Some(number.to_string().as_str()) == step));
    }
    Ok(steps)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use burn::{nn::LinearConfig, tensor::Device};

    use super::*;
    use crate::{
        optimizer::AnyOptimizer, record::EvalRecord, settings::TrainSettings, snapshot::put,
    };

    #[test]
    fn the_newest_whole_snapshot_is_never_removed_and_the_best_last() {
        let folder = tempfile::tempdir().unwrap();
        let mut snapshots = Snapshots::of_run(folder.path(), 4, 0).unwrap();
        let model = LinearConfig::new(1, 1).init(&Device::flex());
        let optimizer = AnyOptimizer::new(&TrainSettings::default());
        let best = EvalRecord {
            step: 1,
            samples: 1,
            loss: 0.5,
            accuracy: None,
        };
        let mut take = |steps| {
            let progress = Progress {
                steps,
                best: Some(best.clone()),
                ..Progress::default()
            };
            let taken =
                snapshots.take(&progress, |out| put(out, "", &progress, &model, &optimizer));
            taken.unwrap();
        };
        (1..=5).for_each(&mut take);
        // Somebody else's.
        fs::write(folder.path().join("snapshot-007"), b"").unwrap();
        // Cut short: 4 is the newest that is whole.
        fs::write(path(folder.path(), 5), b"rekindle").unwrap();
        let mut removed = Vec::new();
        while let Some(step) = snapshots.make_room().unwrap() {
            removed.push(step);
        }
        assert_eq!(removed, [2, 3, 5, 1]);
        assert_eq!(taken(folder.path()).unwrap(), BTreeSet::from([4]));
        fs::write(path(folder.path(), 4), b"rekindle").unwrap();
        assert_eq!(snapshots.make_room().unwrap(), None);
    }
}
