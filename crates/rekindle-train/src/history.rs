//! The files to which a run appends a CSV line for each step and for each evaluation.
//!
//! Only lines that could not be written yet are kept in memory, at most [`PENDING`] bytes, which are allocated when the
//! file is opened.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use csv::{ReaderBuilder, WriterBuilder};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    file_error::FileError,
    record::{EvalRecord, StepRecord},
    replace::{check_regular, open_regular},
};

/// Maximum bytes of lines that wait while the disk is full: about 250 steps. Later lines are lost.
pub(super) const PENDING: usize = 16 << 10;

/// Maximum length of a row. Very large or small numbers are written with an exponent.
const LONGEST_LINE: u64 = 512;

/// A record that is written as a line.
pub(super) trait Row: Serialize + DeserializeOwned {
    /// The first line, with its end.
    const COLUMNS: &'static str;

    /// Number of steps done at that time.
    fn step(&self) -> usize;
}

impl Row for StepRecord {
    const COLUMNS: &'static str = "step,loss,accuracy,learning_rate,step_s,loss_scale,skipped\n";

    fn step(&self) -> usize {
        self.step
    }
}

impl Row for EvalRecord {
    const COLUMNS: &'static str = "step,samples,loss,accuracy\n";

    fn step(&self) -> usize {
        self.step
    }
}

/// A row as a line with its end.
fn written(row: &impl Row) -> csv::Result<Vec<u8>> {
    let mut line = WriterBuilder::new()
        .has_headers(false)
        .buffer_capacity(LONGEST_LINE as usize)
        .from_writer(Vec::with_capacity(LONGEST_LINE as usize));
    line.serialize(row)?;
    line.into_inner().map_err(|error| error.into_error().into())
}

/// Parses a line; `None` if it is malformed.
fn parsed<R: Row>(line: &[u8]) -> Option<R> {
    let mut lines = ReaderBuilder::new()
        .buffer_capacity(LONGEST_LINE as usize)
        .from_reader(R::COLUMNS.as_bytes().chain(line));
    lines.deserialize().next()?.ok()
}

/// A file that rows are appended to.
#[derive(Debug)]
pub(super) struct History<R> {
    path: PathBuf,
    file: File,
    /// Bytes that are whole lines.
    len: u64,
    pending: Vec<u8>,
    rows: PhantomData<R>,
}

impl<R: Row> History<R> {
    /// Opens the file of a run that has done this many steps, and removes later lines; creates the file if it does not
    /// exist. `each` is called with the rows that remain.
    pub(super) fn open(path: &Path, done: usize, each: impl FnMut(&R)) -> Result<Self, FileError> {
        let file = open_regular(path).map_err(FileError::refused(path, "written"))?;
        let len = kept(path, &file, done, each)?;
        let mut history = Self {
            path: path.to_path_buf(),
            file,
            len,
            pending: Vec::with_capacity(PENDING),
            rows: PhantomData,
        };
        if len == 0 {
            history.pending.extend(R::COLUMNS.as_bytes());
        }
        let begun = history.cut().and_then(|()| history.flush());
        begun.map_err(history.refused()).map(|()| history)
    }

    /// Adds a row, after those that could not be written before. A row that cannot be written is kept for the next
    /// call, or lost if too many are waiting already.
    pub(super) fn append(&mut self, row: &R) -> Result<(), FileError> {
        let line = written(row)
            .map_err(io::Error::from)
            .map_err(self.refused())?;
        if self.pending.len() + line.len() <= PENDING {
            self.pending.extend(line);
        }
        self.flush().map_err(self.refused())
    }

    /// Waits until the disk has it.
    pub(super) fn sync(&mut self) -> Result<(), FileError> {
        let synced = self.flush().and_then(|()| self.file.sync_data());
        synced.map_err(self.refused())
    }

    fn refused(&self) -> impl FnOnce(io::Error) -> FileError {
        FileError::refused(&self.path, "written")
    }

    fn flush(&mut self) -> io::Result<()> {
        if !is_at(&self.file, &self.path) {
            // Nobody would find the lines.
            let gone = "it was removed or replaced during the run";
            return Err(io::Error::other(gone));
        }
        self.file.seek(SeekFrom::Start(self.len))?;
        if let Err(error) = self.file.write_all(&self.pending) {
            // Part of a line may have been written. If it cannot be removed now, it is overwritten later.
            let _ = self.cut();
            return Err(error);
        }
        self.len += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)
    }
}

/// The last whole row of a file, if it can be read.
pub(super) fn last<R: Row>(path: &Path) -> Option<R> {
    let from = check_regular(path).ok()?.saturating_sub(2 * LONGEST_LINE);
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut end = Vec::new();
    file.take(2 * LONGEST_LINE).read_to_end(&mut end).ok()?;
    let whole = end.iter().rposition(|&byte| byte == b'\n')?;
    parsed(end[..whole].rsplit(|&byte| byte == b'\n').next()?)
}

/// Whether a path names this file. Only Unix says so.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let of = |found: std::fs::Metadata| (found.dev(), found.ino());
        let there = path.symlink_metadata().map(of);
        file.metadata()
            .is_ok_and(|own| there.is_ok_and(|there| there == of(own)))
    }
    #[cfg(not(unix))]
    path.exists()
}

/// Bytes of a file's lines up to that of step `done`, each of which is passed to `each`. The first line must be the columns.
fn kept<R: Row>(
    path: &Path,
    file: &File,
    done: usize,
    mut each: impl FnMut(&R),
) -> Result<u64, FileError> {
    let mut input = BufReader::new(file);
    let (mut line, mut kept) = (Vec::new(), 0);
    loop {
        line.clear();
        let read = (&mut input)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .map_err(FileError::refused(path, "read"))? as u64;
        let is_whole = line.ends_with(b"\n");
        // Nothing, or a line that a killed process was writing.
        if !is_whole && read < LONGEST_LINE {
            return Ok(kept);
        }
        if kept == 0 {
            if line != R::COLUMNS.as_bytes() {
                let columns = R::COLUMNS.trim_end();
                let reason = format!("line 1 is not one of `{columns}`");
                return Err(FileError::content(path, reason));
            }
        } else {
            let row = parsed::<R>(&line).filter(|row| is_whole && row.step() <= done);
            let Some(row) = row else {
                return Ok(kept);
            };
            each(&row);
        }
        kept += read;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::fs;

    use rekindle_plan::Seconds;

    use super::*;

    fn step(step: usize) -> StepRecord {
        StepRecord {
            step,
            loss: 0.1 + step as f64,
            accuracy: step.is_multiple_of(2).then_some(1.0 / 3.0),
            learning_rate: 1e-300,
            step_s: Seconds(f64::MIN_POSITIVE),
            loss_scale: step.is_multiple_of(3).then_some(65536.0),
            skipped: step.is_multiple_of(2),
        }
    }

    fn opened(path: &Path, done: usize) -> (History<StepRecord>, Vec<StepRecord>) {
        let mut seen = Vec::new();
        let history = History::open(path, done, |row: &StepRecord| seen.push(row.clone()));
        (history.unwrap(), seen)
    }

    #[test]
    fn rows_are_read_as_they_were_written_and_cut_where_a_run_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.csv");
        let (mut history, _) = opened(&path, 0);
        for number in 1..=5 {
            history.append(&step(number)).unwrap();
        }
        assert_eq!(opened(&path, 5).1, [1, 2, 3, 4, 5].map(step));

        assert_eq!(last(&path), Some(step(5)));

        // As a killed process leaves it.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 3]).unwrap();
        assert_eq!(last(&path), Some(step(4)));
        assert_eq!(opened(&path, 5).1, [1, 2, 3, 4].map(step));
        let (mut history, seen) = opened(&path, 2);
        assert_eq!(seen, [1, 2].map(step));
        history.append(&step(3)).unwrap();
        assert_eq!(opened(&path, 5).1, [1, 2, 3].map(step));
    }

    #[test]
    fn lines_that_nobody_wrote_are_cut_and_another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.csv");
        let opened = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            History::<EvalRecord>::open(&path, 9, |_| ()).map_err(|error| error.to_string())
        };
        let whole = format!("{}2,9,0.5,\n", EvalRecord::COLUMNS);
        let long = "9".repeat(600);
        for bad in [
            &b"x,9,0.5,"[..],
            b"2,9,0.5,,",
            b"2,9,0.5",
            b"\xff,9,0.5,",
            long.as_bytes(),
        ] {
            opened(&[whole.as_bytes(), bad, b"\n3,9,0.5,\n"].concat()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        let message = opened(b"step\n").unwrap_err();
        assert!(message.ends_with("line 1 is not one of `step,samples,loss,accuracy`"));
        assert_eq!(fs::read(&path).unwrap(), b"step\n");
    }
}
