//! Errors of run folders.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::record::RunRecordError;
use crate::data::error::Blame;

/// The error of a run folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunDirError {
    /// The system could not access a file or folder.
    #[error("{}: cannot be {what}: {source}", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// What it cannot be: `created`, `locked`, `read`, `removed`, `tidied up` or `written`.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A new run would overwrite another.
    #[error(
        "{}: already holds a run: continue it with `--resume {}`, or name another folder",
        path.display(), path.display()
    )]
    HoldsRun {
        /// The folder.
        path: PathBuf,
    },
    /// Another process is training in the folder.
    #[error("{}: is in use by {holder}: wait until that ends, or name another folder", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process, its host, its command, and for how long it has run.
        holder: String,
    },
    /// A folder without a run.
    #[error("{}: holds no run to resume: `train CONFIG -o {}` starts one", path.display(), path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// A folder whose snapshots are all damaged.
    #[error(
        "{}: none of its {count} snapshots can be read, so the run cannot be resumed: start it anew in another folder (the newest: {newest})",
        path.display()
    )]
    NoneWhole {
        /// The folder.
        path: PathBuf,
        /// Snapshots that were tried.
        count: usize,
        /// What is wrong with the newest.
        newest: Box<RunDirError>,
    },
    /// A folder without a record.
    #[error(
        "{}: holds no record of a run: `train -o` writes one with every snapshot and at the run's end",
        path.display()
    )]
    NoRecord {
        /// The folder.
        path: PathBuf,
    },
    /// A record that cannot be read.
    #[error("{}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: RunRecordError,
    },
    /// A file that is not a snapshot, or has another version.
    #[error("{}: is not a snapshot that this version reads: it does not start with `{expected}`", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// How such a file starts.
        expected: &'static str,
    },
    /// A snapshot of an earlier version.
    #[error(
        "{}: is a `{format}` of an earlier version and cannot be read: continue the run with that version, or start a new run",
        path.display()
    )]
    Outdated {
        /// The file.
        path: PathBuf,
        /// How it starts.
        format: &'static str,
    },
    /// A snapshot without its end.
    #[error("{}: was cut short: the end is missing after {bytes} bytes", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// A snapshot that changed after it was written.
    #[error(
        "{}: is damaged: its checksum is {computed:08x}, but {stored:08x} when it was written",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// CRC-32 when it was written.
        stored: u32,
        /// CRC-32 now.
        computed: u32,
    },
    /// A snapshot that is whole but holds something else than this version writes.
    #[error("{}: cannot be understood: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A resumed run whose settings differ from the recorded ones.
    #[error(
        "{}: `{field}` is {recorded} in the snapshot, but {wanted} now: keep it, or start a new run",
        path.display()
    )]
    Mismatch {
        /// The snapshot.
        path: PathBuf,
        /// What differs, such as `model.layers[2].out`.
        field: String,
        /// Its value in the snapshot.
        recorded: String,
        /// Its value now.
        wanted: String,
    },
    /// A run that has done all requested steps; its record has the results.
    #[error("{}: all {steps} steps are done: ask for more to continue", path.display())]
    Finished {
        /// The run's folder.
        path: PathBuf,
        /// Steps asked for.
        steps: usize,
    },
    /// A run that has done more steps than requested.
    #[error("{}: has done {done} steps already, but {steps} are asked for: ask for at least {done}", path.display())]
    Ahead {
        /// The snapshot.
        path: PathBuf,
        /// Steps done.
        done: usize,
        /// Steps asked for.
        steps: usize,
    },
}

impl RunDirError {
    /// Whether the cause is the system, or the content or the request.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Refused { .. } | Self::NoRun { .. } | Self::Locked { .. } => Blame::System,
            _ => Blame::Content,
        }
    }

    /// Whether the cause is a full disk.
    pub(super) fn is_full_disk(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Refused { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// The reason without the path, to recognise the same reason for another file.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Refused { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }

    /// Turns the system's error about a path into this one; `what` completes "cannot be".
    pub(super) fn refused(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Refused { path, what, source }
    }
}
