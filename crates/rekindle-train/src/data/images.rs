//! Labelled images, stored as bytes and returned as numbers in `[0, 1]`: folders in the form of MNIST and of CIFAR-10.
//!
//! MNIST, and data sets like it, are IDX files: a header of big-endian 32-bit numbers, followed by one byte per value.
//! The first number gives the kind: `0x00000801` one dimension (labels), `0x00000803` three (images, rows, columns);
//! then the dimensions.
//!
//! CIFAR-10's binary version has records of 3,073 bytes: a label, then 1,024 red, 1,024 green and 1,024 blue values,
//! row by row.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    batch::{Batch, Numbers},
    dataset::{Dataset, TargetKind, contents},
    error::{empty, length},
    file::{Input, free, require_folder},
};
use crate::{file_error::FileError, model::spec::SampleShape};

/// Classes of MNIST, of data sets in its form, and of CIFAR-10.
pub(super) const CLASSES: usize = 10;

/// Channels, rows and columns of MNIST's own images.
pub(super) const MNIST: [usize; 3] = [1, 28, 28];

/// Channels, rows and columns of CIFAR-10's images.
pub(super) const CIFAR10: [usize; 3] = [3, 32, 32];

const CIFAR10_RECORD: usize = 1 + 3 * 32 * 32;

const IDX_LABELS: u32 = 0x0000_0801;
const IDX_IMAGES: u32 = 0x0000_0803;

/// Images of one size, one byte a value, and a class for each.
#[derive(Debug)]
pub(super) struct Images {
    /// Channels, rows, columns.
    dims: [usize; 3],
    /// The values, image by image.
    pixels: Vec<u8>,
    /// The classes.
    labels: Vec<u8>,
}

/// The training images of a folder in MNIST's form and, if they exist, the official test images.
pub(super) fn mnist(folder: &Path) -> Result<(Images, Option<Images>), FileError> {
    require_folder(folder)?;
    let train = mnist_set(folder, "train")?.ok_or_else(|| {
        let needs = "; training needs it and train-labels-idx1-ubyte";
        missing(folder, "train-images-idx3-ubyte", needs)
    })?;
    let test = mnist_set(folder, "t10k")?;
    if let Some(test) = test.as_ref().filter(|test| test.dims != train.dims) {
        let [[_, rows, cols], [_, own_rows, own_cols]] = [train.dims, test.dims];
        let reason = format!(
            "holds t10k images of {own_rows} x {own_cols} beside train images of {rows} x {cols}"
        );
        return Err(FileError::content(folder, reason));
    }
    Ok((train, test))
}

fn missing(folder: &Path, name: &str, why: &str) -> FileError {
    let reason = format!("no such file (nor with .gz at its end){why}");
    FileError::system(&folder.join(name), reason)
}

/// One set, or none if neither of its files is there.
fn mnist_set(folder: &Path, prefix: &str) -> Result<Option<Images>, FileError> {
    let look = |rest: &str| -> (String, Option<PathBuf>) {
        // Both spellings occur: that of the original archive, and one that some unpackers produce.
        let name = format!("{prefix}-{rest}-ubyte");
        let dotted = name.replace("-idx", ".idx");
        let found = [&name, &dotted]
            .into_iter()
            .flat_map(|name| ["", ".gz"].map(|end| folder.join(format!("{name}{end}"))))
            .find(|path| path.is_file());
        (name, found)
    };
    let (images_name, images_path) = look("images-idx3");
    let (labels_name, labels_path) = look("labels-idx1");
    let (images_path, labels_path) = match (images_path, labels_path) {
        (None, None) => return Ok(None),
        (Some(images), Some(labels)) => (images, labels),
        (None, Some(_)) => return Err(missing(folder, &images_name, "")),
        (Some(_), None) => return Err(missing(folder, &labels_name, "")),
    };

    let ([images, rows, cols], pixels) = read_idx(&images_path, "images", IDX_IMAGES)?;
    let ([_], labels) = read_idx(&labels_path, "labels", IDX_LABELS)?;
    if images != labels.len() {
        let (labels, of) = (labels.len(), images_path.display());
        let reason = format!("holds {labels} labels for the {images} images of {of}");
        return Err(FileError::content(&labels_path, reason));
    }
    check_labels(&labels, &labels_path)?;
    Ok(Some(Images {
        dims: [1, rows, cols],
        pixels,
        labels,
    }))
}

/// The dimensions and the values of an IDX file of this kind.
fn read_idx<const D: usize>(
    path: &Path,
    what: &'static str,
    magic: u32,
) -> Result<([usize; D], Vec<u8>), FileError> {
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
        *dim = number as usize;
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
        .fold(1u64, |size, &dim| size.saturating_mul(dim as u64));
    let values_read = file.rest_of(values.saturating_add(header.len() as u64))?;
    if values == 0 {
        return Err(empty(path));
    }
    Ok((dims, values_read))
}

/// The training images of CIFAR-10, `data_batch_1.bin` to `data_batch_5.bin`, and the official test set,
/// `test_batch.bin`, if it exists.
pub(super) fn cifar10(folder: &Path) -> Result<(Images, Option<Images>), FileError> {
    require_folder(folder)?;
    // The archive unpacks into its own folder; users may give the parent folder by mistake.
    let unpacked = folder.join("cifar-10-batches-bin");
    let folder = if unpacked.is_dir() {
        unpacked.as_path()
    } else {
        folder
    };

    let train = read_cifar10((1..=5).map(|batch| folder.join(format!("data_batch_{batch}.bin"))))?;
    let test = Some(folder.join("test_batch.bin")).filter(|path| path.is_file());
    Ok((train, test.map(|path| read_cifar10([path])).transpose()?))
}

/// The images of these files, one after the other.
fn read_cifar10(paths: impl IntoIterator<Item = PathBuf>) -> Result<Images, FileError> {
    let mut images = Images {
        dims: CIFAR10,
        pixels: Vec::new(),
        labels: Vec::new(),
    };
    for path in paths {
        let bytes = Input::open(&path)?.all(free())?;
        if bytes.is_empty() {
            return Err(empty(&path));
        }
        let whole = bytes.len().next_multiple_of(CIFAR10_RECORD);
        if bytes.len() != whole {
            return Err(length(&path, whole as u64, bytes.len() as u64));
        }
        let before = images.labels.len();
        for record in bytes.chunks_exact(CIFAR10_RECORD) {
            images.labels.push(record[0]);
            images.pixels.extend_from_slice(&record[1..]);
        }
        check_labels(&images.labels[before..], &path)?;
    }
    Ok(images)
}

/// Fails if one of a file's labels is none of the classes.
fn check_labels(labels: &[u8], path: &Path) -> Result<(), FileError> {
    let mut labels = labels.iter().enumerate();
    let Some((index, label)) = labels.find(|(_, label)| usize::from(**label) >= CLASSES) else {
        return Ok(());
    };
    let last = CLASSES - 1;
    let reason = format!(
        "label {label} of sample {index} is not one of the {CLASSES} classes (0 to {last})"
    );
    Err(FileError::content(path, reason))
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn sample_shape(&self) -> SampleShape {
        SampleShape::float(self.dims)
    }

    fn target(&self) -> TargetKind {
        TargetKind::Classes(CLASSES)
    }

    fn identity(&self) -> Value {
        contents([&self.pixels[..], &self.labels])
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        let size = self.dims.iter().product::<usize>();
        let mut values = Vec::with_capacity(indices.len() * size);
        for &index in indices {
            let image = &self.pixels[index * size..(index + 1) * size];
            values.extend(image.iter().map(|&byte| f32::from(byte) / 255.0));
        }
        let [channels, rows, cols] = self.dims;
        Batch {
            shape: vec![indices.len(), channels, rows, cols],
            inputs: Numbers::Floats(values),
            targets: Numbers::Ids(
                indices
                    .iter()
                    .map(|&index| i32::from(self.labels[index]))
                    .collect(),
            ),
        }
    }
}
