//! What may be wrong with data.

use std::{io, path::Path};

use crate::file_error::FileError;

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

/// The error of a share that leaves no samples for one side.
pub(super) fn starved(share: f64, samples: usize, side: &str) -> FileError {
    FileError::setting(format!(
        "an evaluation share of {share} of {samples} samples leaves none for {side}: change `eval_split` in [train] (0 \
         trains on everything), or use more samples"
    ))
}
