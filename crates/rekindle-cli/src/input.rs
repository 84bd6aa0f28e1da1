//! Input files named by the user: texts, and JSON documents with a format tag.

use std::{fs, path::Path};

use serde::{Deserialize, de::DeserializeOwned};

use crate::failure::Failure;

/// The whole text of a file. Invalid UTF-8 counts as bad usage, not as an error of the system.
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

/// A document of this program in a file, which must be of this format.
pub fn document<T: DeserializeOwned>(path: &Path, format: &str) -> Result<T, Failure> {
    #[derive(Deserialize)]
    struct Tag {
        format: String,
    }
    let text = text(path)?;
    let wrong = |error: serde_json::Error| Failure::usage(format!("{}: {error}", path.display()));
    let found: Tag = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("{}: no `{format}` file: {error}", path.display()))
            .help("such files are written by rekindle itself (`-o`), as JSON")
    })?;
    match found.format == format {
        true => serde_json::from_str(&text).map_err(wrong),
        false => Err(Failure::usage(format!(
            "{} is a `{}` file; expected `{format}`",
            path.display(),
            found.format
        ))),
    }
}
