//! CIFAR-10 in its binary version.
//!
//! Each file holds records of 3,073 bytes: a label, then 1,024 red, 1,024 green and 1,024 blue values, row by row.

use std::path::{Path, PathBuf};

use super::{
    error::{empty, length},
    file::{self, Input},
    images::{Images, check_labels},
};
use crate::file_error::FileError;

/// Channels, rows and columns.
pub const DIMS: [usize; 3] = [3, 32, 32];

const PIXELS: usize = 3 * 32 * 32;
const RECORD: usize = 1 + PIXELS;

/// The training images, `data_batch_1.bin` to `data_batch_5.bin`, and the official test set, `test_batch.bin`, if it
/// exists.
pub(super) fn open(folder: &Path) -> Result<(Images, Option<Images>), FileError> {
    file::require_folder(folder)?;
    // The archive unpacks into its own folder; users may give the parent folder by mistake.
    let unpacked = folder.join("cifar-10-batches-bin");
    let folder = if unpacked.is_dir() {
        unpacked.as_path()
    } else {
        folder
    };

    let train = read((1..=5).map(|batch| folder.join(format!("data_batch_{batch}.bin"))))?;
    let test = Some(folder.join("test_batch.bin")).filter(|path| path.is_file());
    Ok((train, test.map(|path| read([path])).transpose()?))
}

/// The images of these files, one after the other.
fn read(paths: impl IntoIterator<Item = PathBuf>) -> Result<Images, FileError> {
    let mut images = Images {
        dims: DIMS,
        pixels: Vec::new(),
        labels: Vec::new(),
    };
    for path in paths {
        let bytes = Input::open(&path)?.all()?;
        if bytes.is_empty() {
            return Err(empty(&path));
        }
        let whole = bytes.len().next_multiple_of(RECORD);
        if bytes.len() != whole {
            return Err(length(&path, whole as u64, bytes.len() as u64));
        }
        let before = images.labels.len();
        for record in bytes.chunks_exact(RECORD) {
            images.labels.push(record[0]);
            images.pixels.extend_from_slice(&record[1..]);
        }
        check_labels(&images.labels[before..], &path)?;
    }
    Ok(images)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::data::dataset::Dataset;

    fn record(label: u8, pixel: u8) -> Vec<u8> {
        let mut record = vec![pixel; RECORD];
        record[0] = label;
        record
    }

    fn write_all(folder: &Path) {
        for batch in 1..=5u8 {
            fs::write(
                folder.join(format!("data_batch_{batch}.bin")),
                record(batch, batch),
            )
            .unwrap();
        }
    }

    #[test]
    fn joins_the_five_batches() {
        let folder = TempDir::new().unwrap();
        write_all(folder.path());
        let (train, test) = open(folder.path()).unwrap();
        assert_eq!(train.labels, [1, 2, 3, 4, 5]);
        assert_eq!(train.sample_shape().dims, [3, 32, 32]);
        assert!(test.is_none());
    }

    #[test]
    fn a_cut_file_and_a_wrong_label_are_named() {
        let folder = TempDir::new().unwrap();
        write_all(folder.path());
        let third = folder.path().join("data_batch_3.bin");
        let assert_refused = |words: &str| {
            let message = open(folder.path()).err().unwrap().to_string();
            assert!(message.contains(words), "{message}");
        };
        fs::write(&third, &record(1, 0)[..3000]).unwrap();
        assert_refused(
            "data_batch_3.bin: holds 3000 bytes where 3073 are expected; it was cut short",
        );
        fs::write(&third, [record(1, 0), record(200, 0)].concat()).unwrap();
        assert_refused("label 200 of sample 1");
        fs::remove_file(&third).unwrap();
        assert_refused("data_batch_3.bin: no such file");
    }
}
