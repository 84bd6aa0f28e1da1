//! Data files, plain or gzipped. The size of a file is checked before memory is allocated for it.

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;

use super::error::{from_io, length};
use crate::{device::memory, file_error::FileError};

/// A file that is read from its start, unpacked if its name ends in `.gz`.
pub(super) struct Input {
    path: PathBuf,
    from: Box<dyn Read>,
    packed: bool,
    /// Its length, unless it is packed or not a regular file (for example, a pipe).
    length: Option<u64>,
    /// Bytes that were read.
    taken: u64,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(from_io(path, "file"))?;
        let metadata = file.metadata().map_err(from_io(path, "file"))?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        Ok(Self {
            path: path.to_path_buf(),
            length: (metadata.is_file() && !packed).then_some(metadata.len()),
            from: match packed {
                true => Box::new(MultiGzDecoder::new(BufReader::new(file))),
                false => Box::new(file),
            },
            packed,
            taken: 0,
        })
    }

    /// The first `count` bytes, with which a file must start.
    pub(super) fn take(&mut self, count: usize) -> Result<Vec<u8>, FileError> {
        let bytes = self.up_to(count as u64)?;
        match bytes.len() == count {
            true => Ok(bytes),
            false => Err(self.length_is_not(count as u64)),
        }
    }

    /// The rest of a file that must have `expected` bytes in all.
    pub(super) fn rest_of(mut self, expected: u64) -> Result<Vec<u8>, FileError> {
        if self.length.is_some_and(|length| length != expected) {
            return Err(self.length_is_not(expected));
        }
        let left = expected.saturating_sub(self.taken);
        self.check_room(left, free())?;
        // Read one byte more, to detect a longer file.
        let bytes = self.up_to(left.saturating_add(1))?;
        match (bytes.len() as u64).cmp(&left) {
            std::cmp::Ordering::Equal => Ok(bytes),
            std::cmp::Ordering::Less => Err(self.length_is_not(expected)),
            std::cmp::Ordering::Greater => Err(FileError::content(
                &self.path,
                format!("is longer than the {expected} bytes that it should have"),
            )),
        }
    }

    /// All of it, if that is no more than so many bytes.
    pub(super) fn all(mut self, most: u64) -> Result<Vec<u8>, FileError> {
        self.check_room(self.length.unwrap_or(0), most)?;
        let bytes = self.up_to(most.saturating_add(1))?;
        self.check_room(bytes.len() as u64, most)?;
        Ok(bytes)
    }

    /// At most `count` bytes, fewer if the file ends. Memory grows with the bytes actually read.
    fn up_to(&mut self, count: u64) -> Result<Vec<u8>, FileError> {
        let known = self
            .length
            .map_or(0, |length| length - self.taken.min(length));
        let mut bytes = Vec::with_capacity(known.min(count) as usize);
        let read = self.from.by_ref().take(count).read_to_end(&mut bytes);
        read.map_err(|source| match self.packed {
            true => FileError::content(
                &self.path,
                format!("is not a whole gzip file ({source}); get it again"),
            ),
            false => from_io(&self.path, "file")(source),
        })?;
        self.taken += bytes.len() as u64;
        bytes.shrink_to_fit();
        Ok(bytes)
    }

    /// Fails if `bytes` is more than data may take.
    fn check_room(&self, bytes: u64, most: u64) -> Result<(), FileError> {
        match bytes <= most {
            true => Ok(()),
            false => Err(FileError::content(
                &self.path,
                format!("is larger than the memory that is left for data, which is {most} bytes"),
            )),
        }
    }

    fn length_is_not(&self, expected: u64) -> FileError {
        length(&self.path, expected, self.length.unwrap_or(self.taken))
    }
}

/// Bytes that data may take: of the memory that is left to this process an eighth is for all else. Unlimited if the system does
/// not say.
pub(super) fn free() -> u64 {
    match memory().1.0 {
        0 => u64::MAX,
        free => free - free / 8,
    }
}

/// Fails if `folder` is not a folder that can be listed.
pub(super) fn require_folder(folder: &Path) -> Result<(), FileError> {
    fs::read_dir(folder)
        .map(drop)
        .map_err(from_io(folder, "folder"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// What it unpacks to is in no header.
    #[test]
    fn a_packed_text_is_unpacked_as_far_as_there_is_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text.gz");
        let text = [b'a'; 1 << 16];
        let file = File::create(&path).expect("created");
        let mut packed = GzEncoder::new(file, Compression::best());
        packed.write_all(&text).expect("written");
        packed.finish().expect("written");
        let all = |most| {
            let input = Input::open(&path).expect("opened");
            input.all(most).map_err(|error| error.to_string())
        };
        assert_eq!(all(1 << 16), Ok(text.to_vec()));
        let refused = all((1 << 16) - 1).expect_err("too large");
        let words = "left for data, which is 65535 bytes";
        assert!(refused.contains(words), "{refused}");
    }
}
