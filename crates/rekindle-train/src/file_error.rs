//! What is wrong with a file or a folder.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The error of a file or a folder that cannot be used: its path, what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct FileError {
    path: PathBuf,
    reason: String,
    blame: Blame,
    /// Whether the cause is a full disk.
    full_disk: bool,
}

/// The cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The system: a file is missing, in use or cannot be accessed.
    System,
    /// The content: files were read, and their content or the request is invalid.
    Content,
}

impl FileError {
    /// The content is wrong, or does not fit the request.
    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self {
            path: path.to_path_buf(),
            reason: reason.into(),
            blame: Blame::Content,
            full_disk: false,
        }
    }

    /// It is missing or in use.
    pub(crate) fn system(path: &Path, reason: impl Into<String>) -> Self {
        Self {
            blame: Blame::System,
            ..Self::content(path, reason)
        }
    }

    /// Turns the system's error about a path into this one; `what` completes "cannot be".
    pub(crate) fn refused(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        move |source| Self {
            full_disk: matches!(source.kind(), StorageFull | QuotaExceeded),
            ..Self::system(path, format!("cannot be {what}: {source}"))
        }
    }

    /// Whether the cause is the system, or the content or the request.
    #[must_use]
    pub fn blame(&self) -> Blame {
        self.blame
    }

    /// The reason without the path.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn is_full_disk(&self) -> bool {
        self.full_disk
    }
}
