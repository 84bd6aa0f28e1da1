//! The IDX format of MNIST and similar data sets.
//!
//! A file is a header of big-endian 32-bit numbers, followed by one byte per value. The first number gives the kind:
//! `0x00000801` one dimension (labels), `0x00000803` three (images, rows, columns); then the dimensions.

use std::path::Path;

use super::{error::empty, file::Input};
use crate::file_error::FileError;

const LABELS: u32 = 0x0000_0801;
const IMAGES: u32 = 0x0000_0803;

/// The content of an image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdxImages {
    /// Rows of an image.
    pub rows: usize,
    /// Columns of an image.
    pub cols: usize,
    /// One byte a pixel, image by image, row by row.
    pub pixels: Vec<u8>,
}

impl IdxImages {
    /// Number of images.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pixels.len() / (self.rows * self.cols)
    }
}

/// Reads an image file, gzipped if its name ends in `.gz`.
///
/// # Errors
///
/// If the file is missing or unreadable, is no IDX file of images, is longer or shorter than its header says, or holds
/// no pixels.
pub fn read_images(path: &Path) -> Result<IdxImages, FileError> {
    let (dims, pixels) = read(path, "images", IMAGES)?;
    let [_, rows, cols] = dims;
    Ok(IdxImages {
        rows: rows as usize,
        cols: cols as usize,
        pixels,
    })
}

/// Reads a label file, gzipped if its name ends in `.gz`.
///
/// # Errors
///
/// If the file is missing or unreadable, is no IDX file of labels, is longer or shorter than its header says, or holds
/// no labels.
pub fn read_labels(path: &Path) -> Result<Vec<u8>, FileError> {
    let ([_], labels) = read(path, "labels", LABELS)?;
    Ok(labels)
}

fn read<const D: usize>(
    path: &Path,
    what: &'static str,
    magic: u32,
) -> Result<([u32; D], Vec<u8>), FileError> {
    let mut file = Input::open(path)?;
    let header = file.take(4 * (1 + D))?;
    let (numbers, _) = header.as_chunks::<4>();
    let mut numbers = numbers.iter().map(|bytes| u32::from_be_bytes(*bytes));

    let actual = numbers.next().unwrap_or_default();
    if actual != magic {
        return Err(FileError::content(
            path,
            format!(
                "starts with 0x{actual:08x} where an IDX file of {what} starts with 0x{magic:08x}"
            ),
        ));
    }
    let mut dims = [0; D];
    for (dim, number) in dims.iter_mut().zip(numbers) {
        *dim = number;
    }
    if let [_, rows, cols] = dims[..]
        && (rows == 0 || cols == 0)
    {
        let reason = format!("its header gives {what} of {rows} x {cols}");
        return Err(FileError::content(path, reason));
    }
    // Saturating: three 32-bit numbers can overflow 64 bits, and no file is that long.
    let values = dims
        .iter()
        .fold(1u64, |size, &dim| size.saturating_mul(dim.into()));
    let values_read = file.rest_of(values.saturating_add(header.len() as u64))?;
    if values == 0 {
        return Err(empty(path));
    }
    Ok((dims, values_read))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::{fs, io::Write, path::PathBuf};

    use flate2::{Compression, write::GzEncoder};
    use tempfile::TempDir;

    use super::*;

    fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn two_images() -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3];
        bytes.extend([1, 2, 3, 4, 5, 6]);
        bytes
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn assert_refused(path: &Path, words: &str) {
        let message = read_images(path).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn reads_images_row_by_row() {
        let folder = TempDir::new().unwrap();
        let images = read_images(&write(&folder, "images", &two_images())).unwrap();
        assert_eq!((images.count(), images.rows, images.cols), (2, 1, 3));
        assert_eq!(images.pixels, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn unpacks_gzip() {
        let folder = TempDir::new().unwrap();
        let packed = packed(&two_images());
        let path = write(&folder, "images.gz", &packed);
        assert_eq!(read_images(&path).unwrap().count(), 2);

        let cut = write(&folder, "cut.gz", &packed[..packed.len() / 2]);
        assert_refused(&cut, "is not a whole gzip file");
    }

    /// What is unpacked is bounded by what the header promises, not by what the file holds.
    #[test]
    fn a_gzip_file_that_goes_on_is_read_no_further_than_its_header_says() {
        let folder = TempDir::new().unwrap();
        let mut bytes = two_images();
        bytes.resize(64 << 20, 0);
        let path = write(&folder, "images.gz", &packed(&bytes));
        let words = "is longer than the 22 bytes that it should have";
        assert_refused(&path, words);
    }

    /// A file with a hole: 64 GiB that take no room on the disk.
    #[test]
    fn a_padded_file_is_refused_by_its_length() {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, "images", &two_images());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(64 << 30).unwrap();
        let words = format!("holds {} bytes where 22 are expected", 64_u64 << 30);
        assert_refused(&path, &words);
    }

    #[test]
    fn a_promise_larger_than_the_memory_is_refused() {
        let folder = TempDir::new().unwrap();
        let header = [&[0_u8, 0, 8, 3][..], &[0xff; 12]].concat();
        let path = write(&folder, "images.gz", &packed(&header));
        assert_refused(&path, "is larger than the memory that is free");
    }

    #[test]
    fn files_that_are_wrong_are_refused_with_the_numbers() {
        let folder = TempDir::new().unwrap();
        let cut = "holds 20 bytes where 22 are expected; it was cut short";
        let header = |sizes: [u32; 3]| {
            let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
            [0, 0, 8, 3].into_iter().chain(sizes).collect()
        };
        let all: [(Vec<u8>, &str); 4] = [
            (two_images()[..20].to_vec(), cut),
            (
                two_images()[..6].to_vec(),
                "holds 6 bytes where 16 are expected",
            ),
            (header([u32::MAX; 3]), "where 18446744073709551615 are"),
            (header([1, 0, 5]), "images of 0 x 5"),
        ];
        for (bytes, words) in all {
            assert_refused(&write(&folder, "images", &bytes), words);
        }
        let none = [0, 0, 8, 1, 0, 0, 0, 0];
        for (bytes, words) in [
            (
                &two_images()[..],
                "0x00000803 where an IDX file of labels starts with 0x00000801",
            ),
            (&none, "holds no samples"),
        ] {
            let error = read_labels(&write(&folder, "labels", bytes)).unwrap_err();
            assert!(error.reason().contains(words), "{error}");
        }
    }
}
