//! Standard output, files, and notes on standard error. If the reader closes the pipe (`rekindle … | head`), the
//! command ends silently.

/// Writes an error to standard error. A closed standard error does not stop a run.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Writes a line to standard error, unless `--quiet` asks for none.
macro_rules! note {
    ($($text:tt)*) => {
        if !crate::terminal::quiet() {
            complain!($($text)*);
        }
    };
}

use std::{
    io::{ErrorKind, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rekindle_train::replace::replace;
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Whether [`json`] or [`json_line`] was called.
static DOCUMENT: AtomicBool = AtomicBool::new(false);

/// Whether a JSON document was written: a command writes at most one.
pub fn wrote_document() -> bool {
    DOCUMENT.load(Relaxed)
}

/// One JSON document with its end of line.
pub fn lines(document: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(document).map_err(Failure::other)?;
    Ok(format!("{text}\n"))
}

/// Writes one JSON document.
pub fn json(document: &impl Serialize) -> Outcome {
    let text = lines(document)?;
    DOCUMENT.store(true, Relaxed);
    self::text(&text)
}

/// Writes a command's answer: its document where JSON is asked for, else a text.
pub fn answer<T: Serialize>(json: bool, document: &T, text: impl FnOnce(&T) -> String) -> Outcome {
    if json {
        self::json(document)
    } else {
        self::text(&text(document))
    }
}

/// Writes one JSON document in a line.
pub fn json_line(document: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(document).map_err(Failure::other)?;
    DOCUMENT.store(true, Relaxed);
    self::text(&format!("{text}\n"))
}

/// Writes a JSON document to a file.
pub fn json_file(path: &Path, document: &impl Serialize) -> Outcome {
    file(path, &lines(document)?)
}

/// Writes text.
pub fn text(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::file("standard output".as_ref(), &error))
        }
        _ => Ok(()),
    }
}

/// Writes a file atomically: a reader never sees an incomplete file, and a link is not followed.
pub fn file(path: &Path, text: &str) -> Outcome {
    let written = replace(path, |out| out.write_all(text.as_bytes()));
    written.map_err(|error| Failure::file(path, &error))
}

/// Writes a file that the user named, which may also be an existing one that is not regular, such as `/dev/stdout`.
pub fn named_file(path: &Path, text: &str) -> Outcome {
    match path.metadata().is_ok_and(|there| !there.is_file()) {
        true => std::fs::write(path, text).map_err(|error| Failure::file(path, &error)),
        false => file(path, text),
    }
}

/// Refuses to write a file that the command reads.
pub fn check_spared(
    path: Option<&Path>,
    read: impl IntoIterator<Item = impl AsRef<Path>>,
) -> Outcome {
    let written = path.and_then(|path| path.canonicalize().ok());
    let mut read = read
        .into_iter()
        .map(|read| read.as_ref().canonicalize().ok());
    match written.filter(|written| read.any(|read| read.as_ref() == Some(written))) {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!(
            "{}: the command reads this file, and would replace it: name another one",
            path.display()
        ))),
    }
}
