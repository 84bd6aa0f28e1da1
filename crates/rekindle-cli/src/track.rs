//! `train --track`: the tensors that each pass makes and frees, as JSON lines.
//!
//! The file is created before the training, so that an unwritable folder stops the command early, and is written step by
//! step.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rekindle_train::tracker::{TRACK_FORMAT, TrackedPass};
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// The file.
pub struct TrackFile {
    /// Where it is.
    pub path: PathBuf,
    file: File,
}

impl TrackFile {
    /// Creates the file, with a first line that names its format.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        // A link to a file may have been planted; one to a pipe, such as `/dev/stdout`, is used.
        let file = match path.is_symlink() && path.is_file() {
            true => Err(io::Error::other("it is a link")),
            false => File::create(path),
        };
        let file = file.map_err(|error| Failure::file(path, &error))?;
        let mut track = Self {
            path: path.to_owned(),
            file,
        };
        track.line(&serde_json::json!({"format": TRACK_FORMAT}))?;
        Ok(track)
    }

    /// Adds one step's passes.
    pub fn step(&mut self, passes: &[TrackedPass]) -> Outcome {
        passes.iter().try_for_each(|pass| self.line(pass))
    }

    fn line(&mut self, value: &impl Serialize) -> Outcome {
        let line = serde_json::to_string(value).map_err(Failure::other)?;
        let written = writeln!(self.file, "{line}");
        written.map_err(|error| Failure::file(&self.path, &error))
    }
}
