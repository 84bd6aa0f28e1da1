//! A run's state in one file, written and read one tensor at a time.
//!
//! ```text
//! "rekindle-snapshot/3\n"
//! fingerprint, steps done, first and last loss, last and best evaluation
//! count, then an id and a tensor for each parameter and statistic, in the model's order
//! count, then an id, a rank, named tensors and named scalars for each parameter that has optimizer state
//! where the loss scale is dynamic: the scale, and steps since it changed
//! "end\n", CRC-32 of everything before
//! ```
//! Everything between the start and end marks is bincode, at full precision. Ids of parameters are kept, because the
//! optimizer finds its state by them; statistics get new ids, which are not used.
//!
//! Memory: on the host, copies of one parameter's optimizer state, and another copy of one tensor while burn aligns it:
//! two times the largest parameter for SGD with momentum, three times for Adam, and one more with master weights. There
//! are no gradients when a snapshot is taken, so this stays below the optimizer's own peak if no parameter is more than
//! a third of the model (a sixth with master weights). Cost: the file is read twice, so that damage is detected before
//! the content is used.

mod format;
mod progress;
mod reader;
#[cfg(test)]
mod tests;
mod whole;
mod writer;

use std::{io::Write, path::Path};

use super::{replace::replace, run_dir_error::RunDirError};
use format::{END, START};
pub(crate) use progress::Progress;
pub(crate) use reader::Snapshot;
pub(crate) use writer::{SnapshotWriter, flattened};

/// Replaces the snapshot at `path`; `tensors` writes the model and the optimizer, in this order.
pub(super) fn write(
    path: &Path,
    fingerprint: &str,
    progress: &Progress,
    tensors: impl FnOnce(&mut SnapshotWriter<'_>) -> std::io::Result<()>,
) -> Result<(), RunDirError> {
    replace(path, |out| {
        let mut writer = SnapshotWriter {
            out,
            checksum: crc32fast::Hasher::new(),
        };
        writer.write_all(START.as_bytes())?;
        writer.put(fingerprint)?;
        writer.put(progress)?;
        tensors(&mut writer)?;
        writer.write_all(END)?;
        let checksum = writer.checksum.finalize();
        out.write_all(&checksum.to_le_bytes())
    })
    .map_err(RunDirError::refused(path, "written"))
}

/// Writes a snapshot with `body` between its marks, and the checksum that belongs to it.
#[cfg(any(test, fuzzing))]
pub(super) fn crafted(path: &Path, body: &[u8]) -> std::io::Result<()> {
    let mut bytes = [START.as_bytes(), body, END].concat();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    std::fs::write(path, bytes)
}

#[cfg(test)]
#[path = "../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;
