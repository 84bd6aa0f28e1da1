//! The error of data sources.

use std::{io, path::Path};

use crate::file_error::FileError;

/// The error of data that cannot be read or used.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read, or its content is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// Settings are wrong, or do not fit the data.
    #[error("{0}")]
    Setting(String),
}

/// Turns the system's error about a path, a `file` or a `folder`, into ours.
pub(super) fn from_io(path: &Path, what: &'static str) -> impl Fn(io::Error) -> FileError {
    move |source| match source.kind() {
        io::ErrorKind::NotFound => FileError::system(path, format!("no such {what}")),
        _ => FileError::refused(path, "read")(source),
    }
}

/// A file without a single sample.
pub(super) fn empty(path: &Path) -> FileError {
    FileError::content(path, "holds no samples; get the file again")
}

/// A file with more or fewer bytes than its header or format requires.
pub(super) fn length(path: &Path, expected: u64, actual: u64) -> FileError {
    let cut = match actual < expected {
        true => "; it was cut short: get it again",
        false => "",
    };
    let reason = format!("holds {actual} bytes where {expected} are expected{cut}");
    FileError::content(path, reason)
}
