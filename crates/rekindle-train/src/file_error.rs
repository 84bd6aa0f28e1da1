//! What is wrong with a file, a folder, or data.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The error of a file, a folder, or data that cannot be used: the path, what is wrong, and what to do.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{}{reason}", path.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display())))]
pub struct FileError {
    /// `None` where settings are wrong, or do not fit the data.
    path: Option<PathBuf>,
    reason: String,
    /// What the system refuses; `None` where the content or the request is wrong.
    system: Option<io::ErrorKind>,
}

impl FileError {
    /// The content is wrong, or does not fit the request.
    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self {
            path: Some(path.to_path_buf()),
            ..Self::setting(reason)
        }
    }

    /// Settings are wrong, or do not fit the data.
    pub(crate) fn setting(reason: impl Into<String>) -> Self {
        Self {
            path: None,
            reason: reason.into(),
            system: None,
        }
    }

    /// It is missing or in use.
    pub(crate) fn system(path: &Path, reason: impl Into<String>) -> Self {
        Self {
            system: Some(io::ErrorKind::Other),
            ..Self::content(path, reason)
        }
    }

    /// Turns the system's error about a path into this one; `what` completes "cannot be".
    pub(crate) fn refused(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self {
            system: Some(source.kind()),
            ..Self::content(path, format!("cannot be {what}: {source}"))
        }
    }

    /// Whether the system refuses a file: it is missing, in use or cannot be accessed. If not, files were read, and their
    /// content or the request is invalid.
    #[must_use]
    pub fn is_of_system(&self) -> bool {
        self.system.is_some()
    }

    /// The reason without the path.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn is_full_disk(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.system, Some(StorageFull | QuotaExceeded))
    }
}
