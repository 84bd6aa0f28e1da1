//! Text files that a user names.

use std::{fs, path::Path};

use crate::failure::Failure;

/// The whole text of a file. One that is not UTF-8 was read and is wrong: that is bad usage, not the system's refusal.
pub fn text(path: &Path) -> Result<String, Failure> {
    let bytes = fs::read(path).map_err(|error| Failure::file(path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        Failure::usage(format!(
            "{} is not UTF-8 text (byte {})",
            path.display(),
            error.utf8_error().valid_up_to()
        ))
    })
}
